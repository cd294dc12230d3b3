/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may touch device memory on the fake device: threads that run the device's code, by protection keys where the
 * CPU has them; else everybody.
 */
#include "fake.h"

#include <pthread.h>
#include <sys/mman.h>

static int key = -1;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;

static void make_key(void)
{
    key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
}

int fake_protect(void *at, size_t bytes)
{
    pthread_once(&key_once, make_key);
    int rw = PROT_READ | PROT_WRITE;
    return key < 0 ? mprotect(at, bytes, rw) : pkey_mprotect(at, bytes, rw, key);
}

void fake_become_device(void)
{
    pthread_once(&key_once, make_key);
    if (key >= 0) pkey_set(key, 0);
}
