/* SPDX-License-Identifier: Apache-2.0
 *
 * Domains of one-sided transfers: what all ends of one owner share. The asleep word of the waker is in a page that
 * peers of this host map, so that they ring only when the thread sleeps.
 */
#include "base/file/fds.h"
#include "mem/admit.h"
#include "member/member.h"
#include "remote/onesided/lanes.h"
#include "share/fdpass.h"
#include "share/memfd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int64_t kolo_onesided_param_arena, kolo_onesided_param_keep, kolo_onesided_param_ring, kolo_onesided_param_copiers,
    kolo_onesided_param_direct, kolo_onesided_param_sources, kolo_onesided_param_lanes, kolo_onesided_param_split;
bool kolo_onesided_param_shm, kolo_onesided_param_verbs;

static const kolo_param_t rows[] = {
    {"KOLO_ONESIDED_ARENA", KOLO_PARAM_SIZE, "16G", 1 << 20, INT64_C(1) << 44, NULL, false,
     "address space of each connection for what its peer may write to; pages are taken as they are used",
     &kolo_onesided_param_arena},
    {"KOLO_ONESIDED_KEEP", KOLO_PARAM_SIZE, "256M", 0, INT64_C(1) << 44, NULL, false,
     "free memory of a connection that is kept with its pages for the next tensor", &kolo_onesided_param_keep},
    {"KOLO_ONESIDED_RING", KOLO_PARAM_INT, "256", 2, 1 << 20, NULL, false,
     "notices that may be on their way to this process over one connection by shared memory; a power of two",
     &kolo_onesided_param_ring},
    {"KOLO_ONESIDED_COPIERS", KOLO_PARAM_INT, "2", 0, 16, NULL, false,
     "threads of a process that copy values from 4M on over shared memory; 0: the thread of the connections does",
     &kolo_onesided_param_copiers},
    {"KOLO_ONESIDED_DIRECT", KOLO_PARAM_SIZE, "32K", 0, INT64_C(1) << 44, NULL, false,
     "values from that size on are written straight to a receiver's destination by shared memory's processes "
     "(process_vm_writev), where the kernel permits it; 0: never",
     &kolo_onesided_param_direct},
    {"KOLO_ONESIDED_SPLIT", KOLO_PARAM_SIZE, "512K", 1, INT64_C(1) << 44, NULL, false,
     "values from that size on go over several connections in TCP", &kolo_onesided_param_split},
    {"KOLO_ONESIDED_LANES", KOLO_PARAM_INT, "0", 0, 16, NULL, false,
     "connections, and threads of a process, that carry a large value over TCP beside the first connection; 1: "
     "that one alone does; 0: half as many as cores, 2 to 4",
     &kolo_onesided_param_lanes},
    {"KOLO_ONESIDED_SHM", KOLO_PARAM_BOOL, "1", 0, 0, NULL, false,
     "0: one-sided transfers within a host go as those between hosts do", &kolo_onesided_param_shm},
    {"KOLO_ONESIDED_SOURCES", KOLO_PARAM_SIZE, "256M", 0, INT64_C(1) << 44, NULL, false,
     "memory of the program that stays registered with the network card after values were sent from it; 0: it is "
     "registered for each",
     &kolo_onesided_param_sources},
    {"KOLO_ONESIDED_VERBS", KOLO_PARAM_BOOL, "1", 0, 0, NULL, false,
     "0: one-sided transfers between hosts go over TCP, also where both have an RDMA device",
     &kolo_onesided_param_verbs},
};
const kolo_param_table_t kolo_onesided_params = {"onesided", rows, KOLO_COUNTOF(rows), NULL};

const char *kolo_onesided_kind_name(kolo_onesided_kind_t kind)
{
    static const char *const names[KOLO_ONESIDED_KINDS] = {"shm", "verbs", "tcp"};
    return (unsigned)kind < KOLO_ONESIDED_KINDS ? names[kind] : "?";
}

/* Makes what shared memory needs. */
static kolo_status_t share(kolo_onesided_domain_t *domain)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    kolo_peer_card_t card;
    if (!kolo_memfd_may(page)) return KOLO_OK; /* goes without */
    KOLO_TRY(kolo_member_fill_card(&card, 0, -1));
    domain->shm_hash = card.shm_hash;
    KOLO_TRY(kolo_fdpass_address(domain->fd_address));
    KOLO_TRY(kolo_fdpass_start());
    if (kolo_onesided_param_direct) kolo_mem_admit_siblings();
    domain->serving = true;
    KOLO_TRY(kolo_memfd_make("kolo-onesided", page, &domain->page_fd));
    domain->page = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, domain->page_fd, 0);
    if (domain->page != MAP_FAILED) return KOLO_OK;
    domain->page = NULL;
    return kolo_fail_errno(KOLO_ERR_NO_MEMORY, errno, "onesided: cannot map a page");
}

kolo_status_t kolo_onesided_domain_create(const uint8_t key[32], kolo_onesided_domain_t **out)
{
    kolo_onesided_domain_t *domain = calloc(1, sizeof *domain);
    if (domain == NULL) return kolo_fail(KOLO_ERR_NO_MEMORY, "onesided: no memory for a domain");
    memcpy(domain->key, key, sizeof domain->key);
    domain->page_fd = domain->waker.epoll_fd = domain->waker.event_fd = -1;
    kolo_copy_pool_get();
    kolo_status_t status = kolo_onesided_param_shm ? share(domain) : KOLO_OK;
    if (status == KOLO_OK) status = kolo_waker_init(&domain->waker, domain->page);
    if (status == KOLO_OK)
        *out = domain;
    else
        kolo_onesided_domain_destroy(domain);
    return status;
}

kolo_waker_t *kolo_onesided_domain_waker(kolo_onesided_domain_t *domain)
{
    return &domain->waker;
}

void kolo_onesided_domain_destroy(kolo_onesided_domain_t *domain)
{
    if (domain == NULL) return;
    kolo_copy_pool_put();
#if defined(KOLO_HAVE_VERBS)
    kolo_onesided_verbs_leave(domain);
#endif
    kolo_movers_destroy(domain);
    kolo_waker_fini(&domain->waker);
    if (domain->page) munmap(domain->page, (size_t)sysconf(_SC_PAGESIZE));
    if (domain->page_fd >= 0) kolo_fd_close(domain->page_fd);
    if (domain->serving) kolo_fdpass_stop();
    free(domain);
}
