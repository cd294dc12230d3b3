/* SPDX-License-Identifier: Apache-2.0
 *
 * The soak test's kernel, as nvcc made it; without nvcc a mark, which the fake driver takes for any module.
 */
    .section .rodata
    .globl soak_image
    .balign 64
soak_image:
#ifdef SOAK_IMAGE
    .incbin SOAK_IMAGE
#else
    .asciz "none"
#endif
    .byte 0
    .section .note.GNU-stack, "", @progbits
