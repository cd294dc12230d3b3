/* SPDX-License-Identifier: Apache-2.0
 *
 * The compiled kernels, as bytes of the library. KOLO_CUDA_IMAGE: the file that nvcc made; not set: a mark instead.
 */
    .section .rodata
    .globl kolo_cuda_image
    .hidden kolo_cuda_image
    .globl kolo_cuda_image_end
    .hidden kolo_cuda_image_end
    .balign 64
kolo_cuda_image:
#ifdef KOLO_CUDA_IMAGE
    .incbin KOLO_CUDA_IMAGE
#else
    .asciz "none"
#endif
kolo_cuda_image_end:
    .byte 0
    .section .note.GNU-stack, "", @progbits
