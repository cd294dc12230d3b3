// SPDX-License-Identifier: Apache-2.0
//
// Copies between buffers that begin anywhere, by the kernels' own code on the host: every byte arrives, none beside it
// is written, and none outside of the source is read (that a sanitizer sees).
#include "gpu/cuda/realign.cuh"

#include <cstdio>
#include <cstdlib>
#include <cstring>

thread_local uint32_t kolo_block, kolo_blocks;
extern "C" void kolo_pause(void) {}
extern "C" bool kolo_tears(void)
{
    return false;
}
void (*kolo_cuda_tell)(const kolo_cuda_told_t *);

static int failures;

template <typename T> static void try_copy(size_t from, size_t to, size_t bytes, uint64_t threads)
{
    // The source ends where its memory does, the destination has a margin.
    char *dst = (char *)aligned_alloc(16, 512), *at = (char *)malloc(from + bytes); // aligned to 16, too
    for (size_t i = 0; i < from + bytes; i++) at[i] = (char)(i * 37 + 11);
    memset(dst, 0x55, 512);
    for (uint64_t t = 0; t < threads; t++) kolo_copy_across<T>(dst + to, at + from, bytes, t, threads);
    for (size_t i = 0; i < 512; i++) {
        char want = i < to || i >= to + bytes ? 0x55 : at[from + i - to];
        if (dst[i] == want) continue;
        if (++failures < 10)
            fprintf(stderr, "%zu bytes from %zu to %zu, %d threads: byte %zu is %d, not %d\n", bytes, from, to,
                    (int)threads, i, dst[i], want);
        break;
    }
    free(at), free(dst);
}

template <typename T> static void try_all(void)
{
    for (size_t from = 0; from < 16; from += sizeof(T))
        for (size_t to = 0; to < 130; to += to == 16 ? 96 : sizeof(T)) // a head of up to 16 bytes, and of nearly 128
            for (size_t bytes = 0; bytes <= 200; bytes += bytes < 48 ? sizeof(T) : 3 * sizeof(T))
                for (uint64_t threads = 1; threads <= 4; threads += 3) try_copy<T>(from, to, bytes, threads);
}

int main()
{
    try_all<uint8_t>();
    try_all<uint16_t>();
    try_all<float>();
    try_all<double>();
    return failures != 0;
}
