/* SPDX-License-Identifier: Apache-2.0
 *
 * See identity.h.
 */
#include "mem/identity.h"
#include "base/type.h"

static uint64_t bits_of(kolo_type_t type, kolo_op_t op)
{
    enum { ONE, LOWEST, HIGHEST }; /* columns; infinities where the type has them */
    static const uint64_t table[KOLO_TYPE_COUNT][3] = {
        [KOLO_INT8] = {1, 0x80, 0x7f},
        [KOLO_UINT8] = {1, 0, 0xff},
        [KOLO_INT32] = {1, 0x80000000u, 0x7fffffffu},
        [KOLO_UINT32] = {1, 0, 0xffffffffu},
        [KOLO_INT64] = {1, 0x8000000000000000u, 0x7fffffffffffffffu},
        [KOLO_UINT64] = {1, 0, UINT64_MAX},
        [KOLO_FLOAT16] = {0x3c00, 0xfc00, 0x7c00},
        [KOLO_BFLOAT16] = {0x3f80, 0xff80, 0x7f80},
        [KOLO_FLOAT32] = {0x3f800000u, 0xff800000u, 0x7f800000u},
        [KOLO_FLOAT64] = {0x3ff0000000000000u, 0xfff0000000000000u, 0x7ff0000000000000u},
        [KOLO_FLOAT8_E4M3] = {0x38, 0xfe, 0x7e},
        [KOLO_FLOAT8_E5M2] = {0x3c, 0xfc, 0x7c},
        [KOLO_INT16] = {1, 0x8000, 0x7fff},
        [KOLO_UINT16] = {1, 0, 0xffff},
        [KOLO_BOOL] = {1, 0, 1},
    };
    switch (op) {
    case KOLO_BAND:
        return type == KOLO_BOOL ? 1 : UINT64_MAX;
    case KOLO_PROD:
    case KOLO_LAND:
        return table[type][ONE];
    case KOLO_MIN:
        return table[type][HIGHEST];
    case KOLO_MAX:
        return table[type][LOWEST];
    default:
        return 0;
    }
}

uint64_t kolo_mem_identity_word(kolo_type_t type, kolo_op_t op)
{
    uint64_t word = bits_of(type, op);
    for (size_t bits = 8 * kolo_type_bytes(type); bits < 64; bits *= 2)
        word = (word & ((UINT64_C(1) << bits) - 1)) | word << bits;
    return word;
}
