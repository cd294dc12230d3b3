/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory shared between processes through sealed memfds. See memfd.h.
 */
#include "share/memfd.h"
#include "base/file/fds.h"
#include "base/file/limit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

static int make(const char *name)
{
    int f = kolo_fd_own(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
    if (f < 0 && errno == EINVAL)
        f = kolo_fd_own(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)); /* before Linux 6.3 */
    return f;
}

static bool refused;

static void try_one(void)
{
    int f = make("kolo-try");
    refused = f < 0 && (errno == ENOSYS || errno == EPERM || errno == EACCES);
    if (f >= 0) kolo_fd_close(f);
}

bool kolo_memfd_may(uint64_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, try_one);
    return !refused && kolo_file_fits(bytes);
}

kolo_status_t kolo_memfd_make(const char *name, size_t bytes, int *fd)
{
    int f = make(name);
    if (f < 0)
        return kolo_fail_errno(errno == EMFILE || errno == ENFILE ? KOLO_ERR_SYSTEM : KOLO_ERR_UNSUPPORTED, errno,
                               "cannot make a memfd for shared memory");
    if (kolo_file_resize(f, bytes) != 0 || fcntl(f, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        int err = errno;
        kolo_fd_close(f);
        return kolo_fail_errno(KOLO_ERR_SYSTEM, err, "cannot size and seal a memfd of %zu bytes%s", bytes,
                               err == EFBIG ? " (ulimit -f, RLIMIT_FSIZE, holds for shared memory too)" : "");
    }
    *fd = f;
    return KOLO_OK;
}

kolo_status_t kolo_memfd_check(int fd, size_t bytes, const char *who)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &st) == 0 && (uint64_t)st.st_size == bytes)
        return KOLO_OK;
    return kolo_fail(KOLO_ERR_PROTOCOL, "%s handed over a descriptor that is no sealed segment of %zu bytes", who,
                     bytes);
}
