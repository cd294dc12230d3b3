/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoders and decoders of frames.h. A decoder accepts exactly what an encoder can have written.
 */
#include "diag/frames.h"

#include "base/bytes.h"

#include <string.h>

void kolo_board_encode(const kolo_board_frame_t *board, uint8_t bytes[KOLO_BOARD_FRAME_BYTES])
{
    kolo_put64(bytes, board->word);
    kolo_put64(bytes + 8, board->number);
    kolo_put32(bytes + 16, (uint32_t)board->rank);
    kolo_put32(bytes + 20, board->flags);
    kolo_put64(bytes + 24, board->sum);
}

const char *kolo_board_decode(const uint8_t *bytes, size_t length, int nranks, kolo_board_frame_t *board)
{
    if (length != KOLO_BOARD_FRAME_BYTES) return "a board of the wrong length";
    uint32_t rank = kolo_get32(bytes + 16), flags = kolo_get32(bytes + 20);
    if (rank >= (uint32_t)nranks) return "a board with a rank out of range";
    if (flags > KOLO_BOARD_GAVE_UP && flags != KOLO_BOARD_STUCK &&
        flags != (KOLO_BOARD_STUCK | KOLO_BOARD_GAVE_UP) && flags != (KOLO_BOARD_STUCK | KOLO_BOARD_STUCK_SEND))
        return "a board with unknown flags";
    *board =
        (kolo_board_frame_t){kolo_get64(bytes), kolo_get64(bytes + 8), (int)rank, flags, kolo_get64(bytes + 24)};
    return NULL;
}

void kolo_sums_encode(const kolo_sums_frame_t *s, uint8_t bytes[KOLO_SUMS_FRAME_MOST])
{
    kolo_put32(bytes, s->step);
    kolo_put32(bytes + 4, s->count);
    for (uint32_t i = 0; i < s->count; i++) kolo_put64(bytes + KOLO_SUMS_FRAME_BYTES(i), s->sums[i]);
}

const char *kolo_sums_decode(const uint8_t *bytes, size_t length, kolo_sums_frame_t *sums)
{
    if (length < KOLO_SUMS_FRAME_BYTES(1)) return "too short a list of sums";
    sums->step = kolo_get32(bytes);
    sums->count = kolo_get32(bytes + 4);
    if (sums->step != 1 && sums->step != KOLO_SUMS_STEP) return "sums of an unknown step";
    if (sums->count < 1 || sums->count > KOLO_SUMS_MOST) return "sums out of range";
    if (length != KOLO_SUMS_FRAME_BYTES(sums->count)) return "sums of the wrong length";
    for (uint32_t i = 0; i < sums->count; i++) sums->sums[i] = kolo_get64(bytes + KOLO_SUMS_FRAME_BYTES(i));
    return NULL;
}

void kolo_pair_encode(const kolo_pair_frame_t *pair, uint8_t bytes[KOLO_PAIR_FRAME_BYTES])
{
    for (int i = 0; i < 2; i++) {
        kolo_put64(bytes + 8 * i, pair->words[i]);
        for (int k = 0; k < 2; k++) kolo_put64(bytes + 16 + 16 * i + 8 * k, pair->begun[i][k]);
    }
}

const char *kolo_pair_decode(const uint8_t *bytes, size_t length, kolo_pair_frame_t *pair)
{
    if (length != KOLO_PAIR_FRAME_BYTES) return "counts of messages of the wrong length";
    for (int i = 0; i < 2; i++) {
        pair->words[i] = kolo_get64(bytes + 8 * i);
        for (int k = 0; k < 2; k++) pair->begun[i][k] = kolo_get64(bytes + 16 + 16 * i + 8 * k);
    }
    return NULL;
}

void kolo_difference_encode(const kolo_difference_t *d, uint8_t bytes[KOLO_DIFFERENCE_FRAME_BYTES])
{
    kolo_put64(bytes, d->word);
    kolo_put64(bytes + 8, d->number);
    kolo_put64(bytes + 16, d->other_word);
    kolo_put64(bytes + 24, d->other_number);
    kolo_put32(bytes + 32, (uint32_t)d->rank);
    kolo_put32(bytes + 36, (uint32_t)d->other);
}

const char *kolo_difference_decode(const uint8_t *bytes, size_t length, int nranks, kolo_difference_t *d)
{
    if (length != KOLO_DIFFERENCE_FRAME_BYTES) return "a difference of the wrong length";
    uint32_t rank = kolo_get32(bytes + 32), other = kolo_get32(bytes + 36);
    if (rank >= (uint32_t)nranks || other >= (uint32_t)nranks) return "a difference with a rank out of range";
    if (rank == other) return "a difference of a rank from itself";
    *d = (kolo_difference_t){.rank = (int)rank,
                             .other = (int)other,
                             .number = kolo_get64(bytes + 8),
                             .word = kolo_get64(bytes),
                             .other_number = kolo_get64(bytes + 24),
                             .other_word = kolo_get64(bytes + 16)};
    return NULL;
}

void kolo_left_encode(const kolo_left_frame_t *left, uint8_t bytes[KOLO_LEFT_FRAME_BYTES])
{
    kolo_put64(bytes, left->last);
    kolo_put64(bytes + 8, left->sum);
    kolo_put32(bytes + 16, (uint32_t)left->rank);
    kolo_put32(bytes + 20, left->counts);
    kolo_put64(bytes + 24, left->gathers);
}

const char *kolo_left_decode(const uint8_t *bytes, size_t length, int nranks, kolo_left_frame_t *left)
{
    if (length != KOLO_LEFT_FRAME_BYTES) return "a leaving of the wrong length";
    uint32_t rank = kolo_get32(bytes + 16), counts = kolo_get32(bytes + 20);
    if (rank >= (uint32_t)nranks || counts > 1) return "a leaving out of range";
    *left = (kolo_left_frame_t){.last = kolo_get64(bytes),
                                .sum = kolo_get64(bytes + 8),
                                .gathers = kolo_get64(bytes + 24),
                                .rank = (int)rank,
                                .counts = counts != 0};
    return NULL;
}

void kolo_findings_encode(const kolo_finding_t *f, uint8_t bytes[KOLO_FINDINGS_FRAME_BYTES])
{
    memset(bytes, 0, KOLO_FINDINGS_FRAME_BYTES);
    kolo_put32(bytes, f->nops | (f->recorded ? 1u << 8 : 0) | (uint32_t)f->callback << 16);
    kolo_put32(bytes + 4, (uint32_t)f->failed);
    kolo_put64(bytes + 8, f->callback_ns);
    for (uint32_t i = 0; i < f->nops; i++) {
        uint8_t *at = bytes + 16 + 32 * (size_t)i;
        kolo_put64(at, f->ops[i].number);
        kolo_put64(at + 8, f->ops[i].word);
        kolo_put64(at + 16, f->ops[i].age_ns);
        kolo_put32(at + 24, f->ops[i].peer);
        kolo_put32(at + 28, (uint32_t)f->ops[i].kind | (uint32_t)f->ops[i].state << 8);
    }
    memcpy(bytes + KOLO_FINDINGS_NOTE_AT, f->note, strnlen(f->note, KOLO_SURVEY_NOTE - 1));
}

/* Takes a text that ends within its place and is shown as it is. */
static bool take_note(const uint8_t *bytes, char note[KOLO_SURVEY_NOTE])
{
    memcpy(note, bytes, KOLO_SURVEY_NOTE);
    size_t length = strnlen(note, KOLO_SURVEY_NOTE);
    for (size_t i = 0; i < KOLO_SURVEY_NOTE; i++)
        if (i < length ? bytes[i] < 0x20 || bytes[i] > 0x7e : bytes[i] != 0) return false;
    return length < KOLO_SURVEY_NOTE;
}

const char *kolo_findings_decode(const uint8_t *bytes, size_t length, kolo_finding_t *finding)
{
    kolo_finding_t f = {.heard = true};
    if (length != KOLO_FINDINGS_FRAME_BYTES) return "findings of the wrong length";
    uint32_t head = kolo_get32(bytes), failed = kolo_get32(bytes + 4);
    f.nops = head & 0xff;
    f.recorded = (head & 0x100) != 0;
    f.callback = (kolo_callback_t)(head >> 16);
    f.callback_ns = kolo_get64(bytes + 8);
    if ((head & 0xfe00) != 0 || head >> 16 >= KOLO_CALLBACKS || f.nops > KOLO_SURVEY_OPS ||
        failed > KOLO_ERR_REVOKED)
        return "findings out of range";
    f.failed = (kolo_status_t)failed;
    for (uint32_t i = 0; i < KOLO_SURVEY_OPS; i++) {
        const uint8_t *at = bytes + 16 + 32 * (size_t)i;
        uint32_t what = kolo_get32(at + 28);
        f.ops[i] = (kolo_survey_op_t){kolo_get64(at),
                                      kolo_get64(at + 8),
                                      kolo_get64(at + 16),
                                      kolo_get32(at + 24),
                                      (kolo_record_kind_t)(what & 0xff),
                                      (kolo_record_state_t)(what >> 8)};
        bool zero =
            what == 0 && f.ops[i].number == 0 && f.ops[i].word == 0 && f.ops[i].age_ns == 0 && f.ops[i].peer == 0;
        if (i >= f.nops && !zero) return "findings behind the last one";
        if (i < f.nops &&
            ((what & 0xff) >= KOLO_RECORD_KINDS || what >> 8 == KOLO_RECORD_NONE || what >> 8 > KOLO_RECORD_FAILED))
            return "findings of an unknown kind";
    }
    if (!take_note(bytes + KOLO_FINDINGS_NOTE_AT, f.note)) return "findings with a note that is no text";
    f.rank = finding->rank;
    *finding = f;
    return NULL;
}
