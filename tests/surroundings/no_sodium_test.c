/* SPDX-License-Identifier: Apache-2.0
 *
 * A library without libsodium cannot protect what TCP connections carry: who asks for that is told, and gets no
 * connection whose bytes are plain. This program has the records of such a build (link/seal.c) in place of its own.
 */
#include <kolo/kolo.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
    kolo_unique_id_t id;
    setenv("KOLO_TCP_SECURITY", "encrypt", 1);
    kolo_status_t status = kolo_get_unique_id(&id);
    const char *text = status == KOLO_OK ? "no error" : kolo_get_last_error(NULL);
    if (status == KOLO_ERR_UNSUPPORTED && strstr(text, "KOLO_TCP_SECURITY=encrypt") &&
        strstr(text, "without libsodium"))
        return 0;
    fprintf(stderr, "status %d: %s\n", (int)status, text);
    return 1;
}
