// SPDX-License-Identifier: Apache-2.0
//
// Groups that come from groups: split, shrunk, of other members, merged; and a group's windows.
#pragma once

#include "windows.hpp"

#include <random>

namespace kolotorch
{

class Changing : public Group
{
  public:
    using Group::Group;

    // ---- a part of the ranks: all ranks of this group call it ---------------------------------------------------

    bool supportsSplitting() const override
    {
        return true;
    }
    c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store> &store,
                                            const std::vector<int> &ranks,
                                            const c10::intrusive_ptr<Options> &opts) // override, where torch has it
    {
        configured();
        TORCH_CHECK(!ranks.empty(), "kolo: split: the list of ranks is empty");
        for (int r : ranks)
            TORCH_CHECK(r >= 0 && r < size_, "kolo: split: rank ", r, " is not in this group of ", size_);
        auto me = std::find(ranks.begin(), ranks.end(), rank_);
        bool in = me != ranks.end();
        int color = in ? *std::min_element(ranks.begin(), ranks.end()) : KOLO_SPLIT_NOCOLOR;
        int place = in ? (int)(me - ranks.begin()) : 0;
        if (!in && opts && !opts->group_name.empty() && opts->group_name == left_out_) return nullptr;
        auto limit = opts ? opts->timeout : timeout_;
        kolo_comm_t comm = nullptr;
        in_turn("kolo:split", [&](const Place &p) {
            kolo_config_t config = config_of(limit, -1);
            must(kolo_comm_split(p.comm, color, place, &comm, &config));
        });
        if (in) return made(store->clone(), place, (int)ranks.size(), limit, comm, "split", opts);
#ifdef C10D_BACKEND_HAS_HOOKS // this torch asks ranks outside of the part once more for each type of device
        if (opts) left_out_ = opts->group_name;
#endif
        return nullptr;
    }

    // ---- without some ranks: those that stay call it -----------------------------------------------------------

    bool supportsShrinking() const // override, where torch has it
    {
        return true;
    }
    c10::intrusive_ptr<c10d::Backend> shrink(
        const std::vector<int64_t> &excluded, int flags,
        const c10::intrusive_ptr<Options> &opts) // override, where torch has it
    {
        configured();
        TORCH_CHECK((flags & ~KOLO_SHRINK_ABORT) == 0, "kolo: shrink: flags ", flags,
                    ", and there are SHRINK_DEFAULT and SHRINK_ABORT");
        std::vector<int> out(excluded.begin(), excluded.end());
        auto limit = opts ? opts->timeout : timeout_;
        kolo_config_t config = config_of(limit, -1);
        kolo_comm_t comm = nullptr;
        if (flags & KOLO_SHRINK_ABORT) {
            Unlocked unlocked;
            end_device();
            // Ends what this rank's lane is in; what is queued there finds the communicator ended.
            kolo_status_t status =
                kolo_comm_shrink(main_->comm(), out.data(), (int)out.size(), flags, &comm, &config);
            std::string text = status == KOLO_OK ? "" : kolo_get_last_error(nullptr);
            main_->drain();
            if (status != KOLO_OK) fail(status, text);
        } else {
            in_turn("kolo:shrink", [&](const Place &p) {
                must(kolo_comm_shrink(p.comm, out.data(), (int)out.size(), flags, &comm, &config));
            });
        }
        int rank = 0, size = 0;
        must(kolo_comm_user_rank(comm, &rank));
        must(kolo_comm_count(comm, &size));
        if (size != size_ - (int)out.size()) more_are_lost(comm, out);
        std::random_device dice;
        uint64_t name = ((uint64_t)dice() << 32) + dice(); // agreed, so that the ranks' names in the store are one
        must(kolo_broadcast(&name, &name, 1, KOLO_UINT64, 0, comm, nullptr));
        return made(store_->clone(), rank, size, limit, comm, key_ + "/shrunk/" + std::to_string(name), opts);
    }

    // ---- ranks that meet anew by a store -----------------------------------------------------------------------

    c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store> &store,
                                            const c10::intrusive_ptr<Options> &opts, const int &rank,
                                            const int &size) // override, where torch has it
    {
        auto limit = opts ? opts->timeout : timeout_;
        return named(met(store->clone(), rank, size, limit), opts);
    }
#ifdef C10D_BACKEND_HAS_RECONFIGURE
    bool supportsReconfigure() const override
    {
        return reconfigurable_;
    }
    c10d::ReconfigureHandle get_reconfigure_handle() const override
    {
        return handle_;
    }
    WorkPtr reconfigure(const c10d::ReconfigureOptions &o) override
    {
        std::vector<std::string> members;
        if (auto *v = std::get_if<std::vector<std::string>>(&o.handles))
            members = *v;
        else {
            auto &set = std::get<std::unordered_set<std::string>>(o.handles);
            members.assign(set.begin(), set.end());
            std::sort(members.begin(), members.end());
        }
        auto me = std::find(members.begin(), members.end(), handle_);
        TORCH_CHECK(me != members.end(), "kolo: this rank's handle (", handle_, ") is not among the ",
                    members.size(), " handles");
        if (me == members.begin())
            TORCH_CHECK(store_->add("kolo/used/" + std::to_string(o.uuid), 1) == 1, "kolo: uuid ", o.uuid,
                        " was already used");
        {
            std::lock_guard<std::mutex> lock(mutex_);
            device_.reset();
        }
        main_.reset();
        rank_ = (int)(me - members.begin()), size_ = (int)members.size();
        if (o.timeout) timeout_ = options_->timeout = *o.timeout;
        open(std::to_string(o.uuid));
        hooks_->begin_again();
        auto work =
            c10::make_intrusive<Work>(rank_, OpType::UNKNOWN, nullptr, Tensors(), Tensors(), ++seq_, terms());
        work->end(nullptr);
        return work;
    }
#endif

    // ---- windows -----------------------------------------------------------------------------------------------

#ifdef C10D_BACKEND_HAS_WINDOW
    bool supportsWindow() const override
    {
        return true;
    }
    c10::intrusive_ptr<c10d::Window> new_window(const std::optional<at::Tensor> &tensor) override
    {
        configured();
        if (tensor) Window::check(*tensor);
        kolo_comm_t comm = nullptr;
        in_turn("kolo:new_window", [&](const Place &p) { must(kolo_comm_dup(p.comm, &comm, nullptr)); });
        auto window = c10::make_intrusive<Window>(comm, rank_, size_, Terms{hooks_, timeout_, main_->comm()});
        if (tensor) window->tensor_register(*tensor, true);
        return window;
    }
#endif

  protected:
    virtual c10::intrusive_ptr<c10d::Backend> made(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                   std::chrono::milliseconds timeout, kolo_comm_t comm,
                                                   std::string key, const c10::intrusive_ptr<Options> &opts) = 0;
    virtual c10::intrusive_ptr<c10d::Backend> met(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                  std::chrono::milliseconds timeout) = 0;
    static c10::intrusive_ptr<c10d::Backend> named(c10::intrusive_ptr<c10d::Backend> backend,
                                                   const c10::intrusive_ptr<Options> &opts)
    {
        if (!opts) return backend;
        auto own = backend->getBackendOptions();
        own->group_name = opts->group_name;
        own->global_ranks_in_group = opts->global_ranks_in_group;
        return backend;
    }

  private:
    std::string left_out_; // name of the last part that is without this rank
    // torch counts with the list that it gave.
    [[noreturn]] void more_are_lost(kolo_comm_t comm, const std::vector<int> &excluded)
    {
        std::vector<int> lost((size_t)size_);
        int count = size_;
        kolo_comm_lost(main_->comm(), lost.data(), &count);
        std::string more;
        for (int i = 0; i < std::min(count, size_); i++)
            if (std::find(excluded.begin(), excluded.end(), lost[(size_t)i]) == excluded.end())
                more += (more.empty() ? "" : ", ") + std::to_string(lost[(size_t)i]);
        kolo_comm_leave(comm);
        kolo_comm_destroy(comm);
        fail(KOLO_ERR_REMOTE, "shrink: more ranks are lost than the list of ranks to exclude names (" + more +
                                  "): call shrink_group with these as well");
    }
};

} // namespace kolotorch
