/* SPDX-License-Identifier: Apache-2.0
 *
 * The job's secret for KOLO_COMM_ID: from a file or from a descriptor, never from the environment, where every
 * other process of the user and many a log could see it.
 */
#include "base/file/private.h"
#include "meet/id.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>
#ifdef KOLO_HAVE_SODIUM
#include <sodium.h>
#endif

#define SECRET_MIN 16
#define SECRET_MAX 65536
#define TEXT_MAX   64 /* printable characters below which a secret is taken for a password */

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
    char why[4096 + 200];
    int fd = kolo_private_open(path, why, sizeof why);
    if (fd < 0) return kolo_fail(KOLO_ERR_INVALID_USAGE, "KOLO_COMM_SECRET_FILE: %s", why);
    kolo_status_t status = read_all(fd, path, data, bytes);
    close(fd);
    return status;
}

#ifdef KOLO_HAVE_SODIUM
/* Makes each guess cost 64 MB and a tenth of a second: a text that a person has thought of can be guessed by
 * whoever squats the root's address and is sent proofs. From TEXT_MAX characters on, 32 random bytes in hexadecimal
 * for one, no guess succeeds. */
static kolo_status_t stretch(const uint8_t *data, size_t bytes, kolo_key_t *base)
{
    static const uint8_t salt[crypto_pwhash_SALTBYTES] = "kolo job secret";
    static struct { /* ids may be made often */
        kolo_key_t known, stretched;
    } * kept;
    if (kept == NULL && (kept = kolo_private_alloc(sizeof *kept)) == NULL)
        return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory for the hash of the job's secret");
    bool text = bytes < TEXT_MAX;
    for (size_t i = 0; i < bytes && text; i++) text = isprint(data[i]) || isspace(data[i]);
    if (!text) return KOLO_OK;
    if (sodium_memcmp(&kept->known, base, sizeof(kept->known)) != 0) {
        if (crypto_pwhash(kept->stretched.bytes, sizeof(kept->stretched.bytes), (const char *)data, bytes, salt,
                          crypto_pwhash_OPSLIMIT_INTERACTIVE, crypto_pwhash_MEMLIMIT_INTERACTIVE,
                          crypto_pwhash_ALG_ARGON2ID13) != 0)
            return kolo_fail(KOLO_ERR_NO_MEMORY, "no memory (64 MB) for the hash of the job's secret");
        kept->known = *base;
    }
    *base = kept->stretched;
    return KOLO_OK;
}
#else
static kolo_status_t stretch(const uint8_t *data, size_t bytes, kolo_key_t *base)
{
    (void)data, (void)bytes, (void)base;
    return KOLO_OK;
}
#endif

static kolo_status_t make_base(const uint8_t *data, size_t bytes, kolo_key_t *base)
{
    static const kolo_key_t zero;
    kolo_auth_derive(&zero, "secret", data, bytes, base);
    return stretch(data, bytes, base);
}

/* Keeps what came out of a descriptor, hashed: it can be read once, but ids may be made often. */
static kolo_status_t read_base(kolo_key_t *base)
{
    static kolo_key_t kept;
    static int64_t kept_fd = -1;
    uint8_t data[SECRET_MAX + 1];
    size_t bytes = 0;
    if (kolo_meet_values.secret_file != NULL && kolo_meet_values.secret_file[0] != '\0') {
        KOLO_TRY(read_from_file(kolo_meet_values.secret_file, data, &bytes));
        KOLO_TRY(make_base(data, bytes, base));
    } else if (kolo_meet_values.secret_fd >= 0) {
        if (kept_fd != kolo_meet_values.secret_fd) {
            KOLO_TRY(read_all((int)kolo_meet_values.secret_fd, "KOLO_COMM_SECRET_FD", data, &bytes));
            KOLO_TRY(make_base(data, bytes, &kept));
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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what is kept above */

kolo_status_t kolo_secret_stretch(const void *data, size_t bytes, kolo_key_t *key)
{
    kolo_meet_process_init();
    pthread_mutex_lock(&lock);
    kolo_status_t status = stretch(data, bytes, key);
    pthread_mutex_unlock(&lock);
    return status;
}

kolo_status_t kolo_secret_read(const char *scope, kolo_key_t *secret)
{
    kolo_key_t base;
    pthread_mutex_lock(&lock);
    kolo_status_t status = read_base(&base);
    pthread_mutex_unlock(&lock);
    if (status != KOLO_OK) return status;
    kolo_auth_derive(&base, "comm id", scope, strlen(scope), secret);
    kolo_auth_wipe(&base, sizeof(base));
    return KOLO_OK;
}
