/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank that uses the store of kolorun: each puts a value, gets those of all, then rank 0 deletes its own.
 */
#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_MS 30000

static int fail(const char *why, const char *what, int status)
{
    fprintf(stderr, "%s: %d %s\n", what, status, why);
    return 1;
}

int main(void)
{
    const char *rank = getenv("KOLO_RANK"), *nranks = getenv("KOLO_NRANKS");
    static char value[KOLO_STORE_VALUE_MAX + 1];
    char why[400] = "", key[16];
    kolo_store_t *s = kolo_store_open(getenv("KOLO_STORE"), getenv("KOLO_STORE_KEY_FILE"), why, sizeof why);
    if (!s || !rank || !nranks) {
        fprintf(stderr, "%s\n", s ? "no rank" : why);
        return 1;
    }
    /* the largest value there may be */
    memset(value, 'a' + atoi(rank) % 26, KOLO_STORE_VALUE_MAX + 1);
    int status = kolo_store_put(s, "test", rank, value, KOLO_STORE_VALUE_MAX, WAIT_MS, why, sizeof why), sum = 0;
    if (status != 200) return fail(why, "put", status);
    for (int i = 0; i < atoi(nranks); i++) {
        void *data = NULL;
        size_t bytes = 0;
        snprintf(key, sizeof key, "%d", i);
        status = kolo_store_get(s, "test", key, &data, &bytes, WAIT_MS, why, sizeof why);
        if (status != 200 || bytes != KOLO_STORE_VALUE_MAX) return fail(why, "get", status);
        sum += ((char *)data)[bytes - 1] - 'a';
        free(data);
    }
    snprintf(key, sizeof key, "own-%d", atoi(rank));
    if ((status = kolo_store_put(s, "test", key, "", 0, WAIT_MS, why, sizeof why)) != 200)
        return fail(why, "put nothing", status);
    if ((status = kolo_store_delete(s, "test", key, WAIT_MS, why, sizeof why)) != 200)
        return fail(why, "delete", status);
    if ((status = kolo_store_delete(s, "test", key, WAIT_MS, why, sizeof why)) != 404)
        return fail(why, "delete again", status);
    void *none;
    size_t bytes;
    if ((status = kolo_store_get(s, "test", key, &none, &bytes, 2000, why, sizeof why)) != 404)
        return fail(why, "get deleted", status);
    if ((status = kolo_store_put(s, "test", key, value, KOLO_STORE_VALUE_MAX + 1, WAIT_MS, why, sizeof why)) != -1)
        return fail(why, "put too much", status);
    if ((status = kolo_store_put(s, "..", "/", value, 1, WAIT_MS, why, sizeof why)) != -1)
        return fail(why, "put nowhere", status);
    printf("sum %d\n", sum);
    kolo_store_close(s);
    return 0;
}
