/* SPDX-License-Identifier: Apache-2.0
 *
 * The unique id: how it looks as 128 bytes and as a file, and how one is made: a fresh one with a root of our own,
 * or from KOLO_COMM_ID, where every rank computes the same id and whoever owns the address becomes the root.
 *
 *     0 magic   8 version   10 flags   12 zeros   16 address (32)   48 secret (32)   80 first rank   84 zeros
 *     120 checksum
 */
#include "meet/id.h"
#include "base/bytes.h"
#include "base/file/limit.h"
#include "base/file/private.h"
#include "base/log.h"
#include "base/process.h"
#include "link/route.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef KOLO_HAVE_SODIUM
#include <sodium.h>
#endif

#define ID_VERSION    1
#define ID_FLAG_FIXED 1
#define ID_COMPUTED   2
#define ID_CHECKSUM   120
#define PORT_FIRST    21000 /* below the ones that the system gives out */
#define PORT_COUNT    10000

static const uint8_t id_magic[8] = {'k', 'o', 'l', 'o', '-', 'i', 'd', '\n'};

static void process_init_once(void)
{
    struct rlimit limit;
#ifdef KOLO_HAVE_SODIUM
    if (sodium_init() < 0) kolo_error("oob", "libsodium cannot be initialised");
#endif
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
            kolo_warn("oob", "cannot raise the descriptor limit to %llu: %s", (unsigned long long)limit.rlim_max,
                      strerror(errno));
    }
}

void kolo_meet_process_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, process_init_once);
}

void kolo_id_encode(const kolo_id_t *id, kolo_unique_id_t *out)
{
    uint8_t *b = (uint8_t *)out->bytes;
    memset(b, 0, KOLO_UNIQUE_ID_BYTES);
    memcpy(b, id_magic, 8);
    kolo_put16(b + 8, ID_VERSION);
    kolo_put16(b + 10, (uint16_t)((id->fixed ? ID_FLAG_FIXED : 0) | (id->computed ? ID_COMPUTED : 0)));
    memcpy(b + 16, id->address.bytes, 32);
    memcpy(b + 48, id->secret.bytes, 32);
    kolo_put32(b + 80, (uint32_t)id->first_rank);
    kolo_put64(b + ID_CHECKSUM, kolo_hash_bytes(KOLO_HASH_INIT, b, ID_CHECKSUM));
}

const char *kolo_id_decode(const kolo_unique_id_t *in, kolo_id_t *id)
{
    const uint8_t *b = (const uint8_t *)in->bytes;
    if (memcmp(b, id_magic, 8) != 0) return "it does not start like an id (not filled by kolo_get_unique_id?)";
    if (kolo_get16(b + 8) != ID_VERSION) return "it was made by an incompatible version of Kolo";
    if (kolo_get64(b + ID_CHECKSUM) != kolo_hash_bytes(KOLO_HASH_INIT, b, ID_CHECKSUM))
        return "it is damaged (cut or changed on its way?)";
    const uint16_t flags = kolo_get16(b + 10);
    if (flags > (ID_FLAG_FIXED | ID_COMPUTED) || flags == ID_COMPUTED || kolo_get32(b + 12) != 0)
        return "it has unknown flags";
    for (int i = 84; i < ID_CHECKSUM; i++)
        if (b[i] != 0) return "it has unknown fields";
    if (kolo_get32(b + 80) >= KOLO_NRANKS_MAX) return "it is for more ranks than there can be";
    kolo_id_t parsed = {.first_rank = (int)kolo_get32(b + 80),
                        .fixed = (flags & ID_FLAG_FIXED) != 0,
                        .computed = (flags & ID_COMPUTED) != 0};
    memcpy(parsed.address.bytes, b + 16, 32);
    memcpy(parsed.secret.bytes, b + 48, 32);
    const char *wrong = kolo_address_check(&parsed.address);
    if (wrong != NULL) return wrong;
    *id = parsed;
    return NULL;
}

kolo_status_t kolo_id_check(const kolo_unique_id_t *id)
{
    kolo_id_t parsed;
    if (id == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "id is NULL");
    const char *wrong = kolo_id_decode(id, &parsed);
    if (wrong == NULL) return KOLO_OK;
    return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "id is not a unique id: %s", wrong);
}

static bool is_set(const char *text)
{
    return text != NULL && text[0] != '\0';
}

bool kolo_id_has_address(void)
{
    kolo_meet_process_init();
    return is_set(kolo_meet_values.comm_id);
}

bool kolo_id_has_secret(void)
{
    kolo_meet_process_init();
    return is_set(kolo_meet_values.secret_file) || kolo_meet_values.secret_fd >= 0;
}

/* Tells whether a host's name, and no name or number of loopback, leads to loopback: Debian's /etc/hosts has a
 * host's own name at 127.0.1.1, while all others know it by its real address. */
static bool is_own_name(const char *text, const kolo_address_t *address)
{
    const char *const ours[] = {"localhost", "ip6-localhost", "ip6-loopback"};
    bool is = kolo_address_is_loopback(address) && text[0] != '[' && text[strspn(text, "0123456789.")] != ':';
    for (size_t i = 0; i < KOLO_COUNTOF(ours); i++) is = is && strncasecmp(text, ours[i], strlen(ours[i])) != 0;
    return is;
}

/* Reads an address of the job. The host that is named knows itself by loopback only: it takes the address that its
 * ranks listen at, and a root there hears callers at all of them. */
static kolo_status_t parse_own(const char *text, kolo_id_t *id)
{
    kolo_address_t real;
    char buf[KOLO_ADDRESS_TEXT_BYTES];
    KOLO_TRY(kolo_address_parse(text, &id->address));
    if (!KOLO_AUTH_STRONG || !is_own_name(text, &id->address)) return KOLO_OK;
    if (kolo_address_choose_local(NULL, &real) != KOLO_OK || kolo_address_is_loopback(&real)) return KOLO_OK;
    kolo_address_set_port(&real, kolo_address_port(&id->address));
    kolo_info("oob", "%s is a loopback address on this host: %s is taken for it", text,
              kolo_address_print(&real, buf));
    id->address = real;
    id->wide = true;
    return KOLO_OK;
}

kolo_status_t kolo_id_create_at(const char *address, const char *scope, kolo_unique_id_t *out)
{
    kolo_id_t id = {.fixed = true};
    bool taken = false;
    kolo_meet_process_init();
    KOLO_TRY(parse_own(address, &id));
    KOLO_TRY(kolo_secret_read(scope, &id.secret));
    kolo_listener_reserve(kolo_address_port(&id.address));
    kolo_status_t status = kolo_root_start(&id, &taken);
    if (taken) status = KOLO_OK; /* another rank or host serves it */
    if (status == KOLO_OK) kolo_id_encode(&id, out);
    kolo_auth_wipe(&id, sizeof(id));
    return status;
}

kolo_status_t kolo_id_check_interfaces(void)
{
    kolo_address_t own;
    return kolo_address_choose_local(NULL, &own);
}

bool kolo_id_hint(const char *text)
{
    kolo_address_t address;
    char name[16];
    if (kolo_address_parse(text, &address) != KOLO_OK) return true;
    kolo_address_set_hint(&address);
    return kolo_address_is_loopback(&address) || kolo_address_is_own(&address, name);
}

bool kolo_id_is_loopback(const char *text)
{
    kolo_address_t address;
    return kolo_address_parse(text, &address) != KOLO_OK || kolo_address_is_loopback(&address);
}

void kolo_id_address(const kolo_id_t *id, unsigned number, kolo_address_t *address)
{
    kolo_key_t hash;
    *address = id->address;
    if (number == 0) return;
    kolo_auth_derive(&id->secret, "port", &number, sizeof(number), &hash);
    kolo_address_set_port(address, (uint16_t)(PORT_FIRST + kolo_get32(hash.bytes) % PORT_COUNT));
}

static kolo_status_t start_computed_root(const kolo_id_t *id)
{
    char first[KOLO_ADDRESS_TEXT_BYTES];
    for (unsigned i = 0; i < KOLO_ID_ADDRESSES; i++) {
        kolo_id_t own = *id;
        bool taken = false;
        kolo_id_address(id, i, &own.address);
        kolo_status_t status = kolo_root_start(&own, &taken);
        const int err = errno;
        const unsigned port = kolo_address_port(&own.address);
        kolo_auth_wipe(&own, sizeof(own));
        if (!taken) return status;
        if (err == EADDRNOTAVAIL)
            return kolo_fail(KOLO_ERR_INVALID_USAGE,
                             "rank 0 has to be on the host with that address, and it is none of this host's: %s",
                             kolo_address_print(&id->address, first));
        kolo_info("oob", "another program has port %u, where this job's root would be: the next one is tried",
                  port);
    }
    return kolo_fail(KOLO_ERR_SYSTEM, "other programs have all %d ports that this job could have, from %s on",
                     KOLO_ID_ADDRESSES, kolo_address_print(&id->address, first));
}

kolo_status_t kolo_id_create_computed(const char *address, const char *scope, bool is_root, bool one_host,
                                      kolo_unique_id_t *out)
{
    kolo_id_t id = {.fixed = true, .computed = true};
    kolo_meet_process_init();
    KOLO_TRY(one_host ? kolo_address_parse(address, &id.address) : parse_own(address, &id));
    KOLO_TRY(kolo_secret_read(scope, &id.secret));
    kolo_listener_reserve(kolo_address_port(&id.address));
    kolo_status_t status = is_root ? start_computed_root(&id) : KOLO_OK;
    if (status == KOLO_OK) kolo_id_encode(&id, out);
    kolo_auth_wipe(&id, sizeof(id));
    return status;
}

/* Makes an id. near: whose subnet is preferred; NULL: none. */
static kolo_status_t create_fresh(kolo_id_t *id, const kolo_address_t *near)
{
    bool taken;
    KOLO_TRY(kolo_address_choose_local(near, &id->address));
    KOLO_TRY(kolo_random(id->secret.bytes, sizeof(id->secret.bytes)));
    return kolo_root_start(id, &taken);
}

kolo_status_t kolo_id_create_grow(int nranks, kolo_unique_id_t *out)
{
    kolo_id_t id = {.first_rank = nranks};
    kolo_meet_process_init();
    KOLO_TRY(create_fresh(&id, NULL));
    kolo_id_encode(&id, out);
    kolo_auth_wipe(&id, sizeof(id));
    return KOLO_OK;
}

kolo_status_t kolo_id_create_local(kolo_unique_id_t *out)
{
    kolo_id_t id = {.first_rank = 0};
    kolo_address_t loopback;
    if (kolo_id_has_address()) return kolo_id_create(out);
    kolo_meet_process_init();
    KOLO_TRY(kolo_address_parse("127.0.0.1:1", &loopback)); /* of the port nothing is asked */
    KOLO_TRY(create_fresh(&id, kolo_address_has_network() ? &loopback : NULL));
    kolo_id_encode(&id, out);
    kolo_auth_wipe(&id, sizeof(id));
    return KOLO_OK;
}

int kolo_id_grows_from(const kolo_unique_id_t *id)
{
    kolo_id_t parsed;
    int first = kolo_id_decode(id, &parsed) == NULL ? parsed.first_rank : 0;
    kolo_auth_wipe(&parsed, sizeof(parsed));
    return first;
}

kolo_status_t kolo_id_create(kolo_unique_id_t *out)
{
    if (out == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "id is NULL");
    if (!kolo_id_has_address()) return kolo_id_create_grow(0, out);
    kolo_status_t status = kolo_id_create_at(kolo_meet_values.comm_id, kolo_meet_values.comm_id, out);
    return status == KOLO_OK ? KOLO_OK : kolo_fail_prefix(status, "KOLO_COMM_ID: ");
}

/* ---- as a file ---- */

static kolo_status_t write_file(int fd, const char *path, const void *data, size_t bytes)
{
    ssize_t n = kolo_file_write(fd, data, bytes);
    if (n == (ssize_t)bytes && fsync(fd) == 0) return KOLO_OK;
    return kolo_fail_errno(KOLO_ERR_SYSTEM, n < 0 ? errno : EIO, "cannot write the id to %s", path);
}

kolo_status_t kolo_id_save(const kolo_unique_id_t *id, const char *path)
{
    char temp[4096];
    if (path == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "path is NULL");
    KOLO_TRY(kolo_id_check(id));
    if (snprintf(temp, sizeof(temp), "%s.XXXXXX", path) >= (int)sizeof(temp))
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "path is too long");
    int fd = mkostemp(temp, O_CLOEXEC); /* mode 0600 */
    if (fd < 0) return kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "cannot create a file beside %s", path);
    (void)fchmod(fd, 0600); /* whatever the umask takes away */
    kolo_status_t status = write_file(fd, path, id->bytes, sizeof(id->bytes));
    close(fd);
    if (status == KOLO_OK && rename(temp, path) != 0)
        status = kolo_fail_errno(KOLO_ERR_SYSTEM, errno, "cannot put the id in place as %s", path);
    if (status != KOLO_OK) unlink(temp);
    return status;
}

/* Reads a file; *found stays false while there is no such one. */
static kolo_status_t try_load(kolo_unique_id_t *id, const char *path, bool *found)
{
    kolo_unique_id_t read_id;
    char more, why[4096 + 200];
    int fd = kolo_private_open(path, why, sizeof why);
    if (fd < 0 && errno == ENOENT) return KOLO_OK;
    if (fd < 0) return kolo_fail(errno == EPERM ? KOLO_ERR_INVALID_USAGE : KOLO_ERR_SYSTEM, "the id file %s", why);
    ssize_t n = read(fd, read_id.bytes, sizeof(read_id.bytes));
    ssize_t rest = n == (ssize_t)sizeof(read_id.bytes) ? read(fd, &more, 1) : 0;
    close(fd);
    if (n != (ssize_t)sizeof(read_id.bytes) || rest != 0)
        return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "%s is not an id file: it must hold %d bytes", path,
                         KOLO_UNIQUE_ID_BYTES);
    kolo_status_t status = kolo_id_check(&read_id);
    if (status != KOLO_OK) return kolo_fail_prefix(status, "id file %s: ", path);
    *id = read_id;
    *found = true;
    return KOLO_OK;
}

kolo_status_t kolo_id_load(kolo_unique_id_t *id, const char *path, int timeout_ms)
{
    return kolo_id_await(id, path, timeout_ms, &(kolo_ended_t){0}, 0);
}

kolo_status_t kolo_id_await(kolo_unique_id_t *id, const char *path, int timeout_ms, kolo_ended_t *ended, int rank)
{
    bool found = false;
    if (id == NULL || path == NULL) return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "id or path is NULL");
    if (*path == '\0') return kolo_fail(KOLO_ERR_INVALID_ARGUMENT, "the path of the id file is empty");
    uint64_t deadline = kolo_now_ns() + (uint64_t)KOLO_MAX(timeout_ms, 0) * KOLO_NS_PER_MS;
    for (;;) {
        KOLO_TRY(try_load(id, path, &found));
        if (found) return KOLO_OK;
        if (kolo_now_ns() >= deadline)
            return kolo_fail(KOLO_ERR_TIMEOUT,
                             "the id file %s did not appear within %d ms: the rank that writes it (rank 0 of a "
                             "launched job) has not reached that call, or has ended",
                             path, timeout_ms);
        if (kolo_ended_wait(ended, rank)) return kolo_fail(KOLO_ERR_REMOTE, KOLO_ENDED_WORDS, rank);
        poll(NULL, 0, 10); /* a file system shared between hosts has nothing to wake us */
    }
}
