// SPDX-License-Identifier: Apache-2.0
//
// What gRPC carries between two processes, as kolo-perf rendezvous measures keyed tensors: the client asks by key on a
// stream of its own per channel, the server answers on it with slices of memory that it holds, which nobody copies
// before the socket. At most `depth` requests are under way. Neither end has messages compiled: bytes in, bytes out.
//
//     peer-grpc server ADDRESS                                  until its standard input ends
//     peer-grpc client ADDRESS BYTES VALUES DEPTH CHANNELS      prints: us per value
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

constexpr int kNoLimit = -1;
constexpr size_t kMost = size_t{64} << 20;
constexpr size_t kSliceMost = size_t{1} << 20;

std::string Text(const grpc::ByteBuffer &buffer)
{
    std::vector<grpc::Slice> slices;
    std::string text;
    (void)buffer.Dump(&slices);
    for (const auto &slice : slices) text.append(reinterpret_cast<const char *>(slice.begin()), slice.size());
    return text;
}

// ---- the server: memory under keys; a request is "KEY BYTES" ----

std::vector<char> held(kMost, 'k');

grpc::ByteBuffer Held(size_t bytes)
{
    std::vector<grpc::Slice> slices;
    for (size_t at = 0; at < bytes; at += kSliceMost)
        slices.emplace_back(held.data() + at, std::min(kSliceMost, bytes - at), grpc::Slice::STATIC_SLICE);
    return grpc::ByteBuffer(slices.data(), slices.size());
}

class Answers : public grpc::ServerGenericBidiReactor {
  public:
    Answers() { StartRead(&request_); }
    void OnReadDone(bool ok) override
    {
        if (!ok) {
            std::lock_guard<std::mutex> lock(mutex_);
            ended_ = true;
            if (!writing_) Finish(grpc::Status::OK);
            return;
        }
        std::string text = Text(request_);
        size_t bytes = std::strtoull(std::strrchr(text.c_str(), ' '), nullptr, 10);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            due_.push_back(bytes);
            Next();
        }
        StartRead(&request_);
    }
    void OnWriteDone(bool) override
    {
        std::lock_guard<std::mutex> lock(mutex_);
        writing_ = false;
        Next();
        if (ended_ && !writing_) Finish(grpc::Status::OK);
    }
    void OnDone() override { delete this; }

  private:
    void Next() // with the lock
    {
        if (writing_ || first_ == due_.size()) return;
        writing_ = true;
        answer_ = Held(due_[first_++]);
        if (first_ == due_.size()) {
            due_.clear();
            first_ = 0;
        }
        grpc::WriteOptions options;
        if (first_ < due_.size()) options.set_buffer_hint(); // more follows at once
        StartWrite(&answer_, options);
    }
    std::mutex mutex_;
    grpc::ByteBuffer request_, answer_;
    std::vector<size_t> due_;
    size_t first_ = 0;
    bool writing_ = false, ended_ = false;
};

class Service : public grpc::CallbackGenericService {
    grpc::ServerGenericBidiReactor *CreateReactor(grpc::GenericCallbackServerContext *) override { return new Answers; }
};

int Serve(const char *address)
{
    Service service;
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kNoLimit);
    builder.SetMaxSendMessageSize(kNoLimit);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterCallbackGenericService(&service);
    std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    if (!server) return 1;
    std::puts("serving");
    std::fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    server->Shutdown(std::chrono::system_clock::now());
    return 0;
}

// ---- the client ----

struct Run {
    size_t bytes;
    std::mutex mutex;
    std::condition_variable done;
    size_t streams;
    bool wrong = false;
};

class Stream : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
  public:
    Stream(Run *run, const std::shared_ptr<grpc::Channel> &channel, size_t values, size_t depth)
        : run_(run), stub_(channel), left_(values), room_(depth), unread_(values)
    {
        stub_.PrepareBidiStreamingCall(&context_, "/bench.Tensors/Receive", grpc::StubOptions(), this);
        StartRead(&answer_);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            Next();
        }
        StartCall();
    }
    void OnWriteDone(bool ok) override
    {
        std::lock_guard<std::mutex> lock(mutex_);
        writing_ = false;
        if (ok) Next();
    }
    void OnReadDone(bool ok) override
    {
        if (!ok) return;
        if (answer_.Length() != run_->bytes) run_->wrong = true;
        answer_.Clear();
        {
            std::lock_guard<std::mutex> lock(mutex_);
            room_++;
            unread_--;
            Next();
            if (unread_ == 0) StartWritesDone();
        }
        StartRead(&answer_);
    }
    void OnDone(const grpc::Status &status) override
    {
        std::lock_guard<std::mutex> lock(run_->mutex);
        if (!status.ok() || unread_ != 0) run_->wrong = true;
        if (!status.ok()) std::fprintf(stderr, "peer-grpc: %s\n", status.error_message().c_str());
        if (--run_->streams == 0) run_->done.notify_one();
    }

  private:
    void Next() // with the lock
    {
        if (writing_ || left_ == 0 || room_ == 0) return;
        writing_ = true;
        room_--;
        std::string key = "/job:ps/task:0/device:cpu:0;0123456789abcdef;/job:worker/task:0/device:cpu:0;layer_" +
                          std::to_string(left_-- % 256) + "/weights;0:0 " + std::to_string(run_->bytes);
        grpc::Slice slice(key);
        request_ = grpc::ByteBuffer(&slice, 1);
        grpc::WriteOptions options;
        if (left_ > 0 && room_ > 0) options.set_buffer_hint();
        StartWrite(&request_, options);
    }
    Run *run_;
    grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
    grpc::ClientContext context_;
    std::mutex mutex_;
    grpc::ByteBuffer request_, answer_;
    size_t left_, room_, unread_;
    bool writing_ = false;
};

std::shared_ptr<grpc::Channel> Open(const char *address, int number)
{
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kNoLimit);
    arguments.SetMaxSendMessageSize(kNoLimit);
    arguments.SetInt("bench.number", number); // else two channels share a connection
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20));
    return channel;
}

double Measure(const std::vector<std::shared_ptr<grpc::Channel>> &channels, size_t bytes, size_t values, size_t depth)
{
    Run run;
    run.bytes = bytes;
    run.streams = channels.size();
    size_t n = channels.size();
    auto start = std::chrono::steady_clock::now();
    std::vector<std::unique_ptr<Stream>> streams;
    for (size_t i = 0; i < n; i++)
        streams.emplace_back(new Stream(&run, channels[i], values / n + (i < values % n), std::max<size_t>(1, depth / n)));
    std::unique_lock<std::mutex> lock(run.mutex);
    run.done.wait(lock, [&] { return run.streams == 0; });
    double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
    return run.wrong ? -1 : us / static_cast<double>(values);
}

int Ask(char **argv)
{
    size_t bytes = std::strtoull(argv[1], nullptr, 10), values = std::strtoull(argv[2], nullptr, 10);
    size_t depth = std::strtoull(argv[3], nullptr, 10), n = std::strtoull(argv[4], nullptr, 10);
    if (bytes == 0 || bytes > kMost || depth == 0 || n == 0 || values < n) return 2;
    std::vector<std::shared_ptr<grpc::Channel>> channels;
    for (size_t i = 0; i < n; i++) channels.push_back(Open(argv[0], static_cast<int>(i)));
    if (Measure(channels, bytes, std::max<size_t>(n, std::min<size_t>(values, 512)), depth) < 0) return 1;
    double us = Measure(channels, bytes, values, depth);
    std::printf("%.3f\n", us);
    return us < 0;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc == 3 && std::strcmp(argv[1], "server") == 0) return Serve(argv[2]);
    if (argc == 7 && std::strcmp(argv[1], "client") == 0) return Ask(argv + 2);
    std::fprintf(stderr, "usage: peer-grpc server ADDRESS | peer-grpc client ADDRESS BYTES VALUES DEPTH CHANNELS\n");
    return 2;
}
