/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that has used up all keys of thread-specific data is told so by kolo_group_start(), and goes on.
 */
#include <kolo/kolo.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    pthread_key_t key;
    int n = 0;
    while (pthread_key_create(&key, NULL) == 0) n++;
    kolo_status_t status = kolo_group_start();
    if (status != KOLO_ERR_SYSTEM || !strstr(kolo_get_last_error(NULL), "PTHREAD_KEYS_MAX")) {
        fprintf(stderr, "after %d keys kolo_group_start() returned %d: %s\n", n, (int)status,
                kolo_get_last_error(NULL));
        return 1;
    }
    pthread_key_delete(key);
    return 0;
}
