/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzer of the launcher's words. What is accepted is within the bounds that the rest relies on.
 */
#include "elastic/state.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static kolo_word_t word;
    char *line = malloc(size + 1); /* of its exact size, so that a read behind it is seen */
    if (!line) return 0;
    memcpy(line, data, size);
    line[size] = '\0';
    if (kolo_state_word_parse(line, size, &word)) {
        require(memchr(data, '\0', size) == NULL);
        require(word.kind <= KOLO_WORD_LEAVE && word.nremove >= 0 && word.nremove <= KOLO_STATE_LIST_MAX);
        require(word.min >= 0 && word.add >= 0 && word.rank >= 0 && word.rank <= word.nranks);
        require(word.plan > 0 || word.kind == KOLO_WORD_MIN || word.kind == KOLO_WORD_LEAVE);
        require((word.kind == KOLO_WORD_REMOVE) == (word.nremove > 0));
        require(word.kind != KOLO_WORD_ADD || word.add > 0);
    }
    free(line);
    return 0;
}
