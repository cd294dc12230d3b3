/* SPDX-License-Identifier: Apache-2.0
 *
 * The job's secret for KOLO_COMM_ID: from a file or from a descriptor, never from the environment, where every
 * other process of the user and many a log could see it.
 */
#include "base/log.h"
#include "meet/id.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRET_MIN 16
#define SECRET_MAX 65536

static kolo_status_t read_all(int fd, const char *what, uint8_t *data, size_t *bytes)
{
    *bytes = 0;
    for (;;) {
        ssize_t n = read(fd, data + *bytes, SECRET_MAX + 1 - *bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "cannot read the job's secret from %s", what);
        *bytes += (size_t)n;
        if (*bytes > SECRET_MAX)
            return kolo_fail(KOLO_ERR_INVALID_USAGE, "the secret in %s is larger than %d bytes", what, SECRET_MAX);
        if (n == 0) break;
    }
    if (*bytes < SECRET_MIN)
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "the secret in %s has %zu bytes, it needs at least %d (for one: head "
                         "-c 32 /dev/urandom)",
                         what, *bytes, SECRET_MIN);
    return KOLO_OK;
}

static kolo_status_t read_from_file(const char *path, uint8_t *data, size_t *bytes)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return kolo_fail_errno(KOLO_ERR_INVALID_USAGE, errno, "cannot open KOLO_COMM_SECRET_FILE=%s", path);
    if (fstat(fd, &info) == 0 && (info.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        kolo_warn("oob", "others may read the job's secret: chmod 600 %s", path);
    kolo_status_t status = read_all(fd, path, data, bytes);
    close(fd);
    return status;
}

/* A descriptor can be read once, but ids may be made often: what came out of it is kept, hashed. */
static kolo_status_t read_base(kolo_key_t *base)
{
    static const kolo_key_t zero;
    static kolo_key_t kept;
    static int64_t kept_fd = -1;
    uint8_t data[SECRET_MAX + 1];
    size_t bytes = 0;
    if (kolo_meet_values.secret_file != NULL && kolo_meet_values.secret_file[0] != '\0') {
        KOLO_TRY(read_from_file(kolo_meet_values.secret_file, data, &bytes));
        kolo_auth_derive(&zero, "secret", data, bytes, base);
    } else if (kolo_meet_values.secret_fd >= 0) {
        if (kept_fd != kolo_meet_values.secret_fd) {
            KOLO_TRY(read_all((int)kolo_meet_values.secret_fd, "KOLO_COMM_SECRET_FD", data, &bytes));
            kolo_auth_derive(&zero, "secret", data, bytes, &kept);
            kept_fd = kolo_meet_values.secret_fd;
        }
        *base = kept;
    } else {
        return kolo_fail(KOLO_ERR_INVALID_USAGE,
                         "KOLO_COMM_ID needs the job's secret: set KOLO_COMM_SECRET_FILE (or "
                         "KOLO_COMM_SECRET_FD) to the same secret on all ranks");
    }
    kolo_auth_wipe(data, bytes);
    return KOLO_OK;
}

kolo_status_t kolo_oob_read_secret(const char *scope, kolo_key_t *secret)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    kolo_key_t base;
    pthread_mutex_lock(&lock);
    kolo_status_t status = read_base(&base);
    pthread_mutex_unlock(&lock);
    if (status != KOLO_OK) return status;
    kolo_auth_derive(&base, "comm id", scope, strlen(scope), secret);
    kolo_auth_wipe(&base, sizeof(base));
    return KOLO_OK;
}
