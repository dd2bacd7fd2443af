/* AMX tiles in plain C, so that kernels for them are tested on every CPU: included before all else with -include. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline float emulated_float(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

static _Thread_local struct { uint8_t palette, rest[15]; uint16_t bytes[16]; uint8_t rows[16]; } emulated_config;
static _Thread_local uint8_t emulated[8][16][64];

static inline void emulated_load(int tile, const void *from, long stride) {
    memset(emulated[tile], 0, sizeof emulated[tile]);
    for (int row = 0; row < emulated_config.rows[tile]; row++)
        memcpy(emulated[tile][row], (const char *)from + row * stride, emulated_config.bytes[tile]);
}

static inline void emulated_store(int tile, void *to, long stride) {
    for (int row = 0; row < emulated_config.rows[tile]; row++)
        memcpy((char *)to + row * stride, emulated[tile][row], emulated_config.bytes[tile]);
}

/* Products of the first numbers of pairs and those of the second are summed apart, each with one rounding. */
static inline void emulated_product(int c, int a, int b) {
    for (int m = 0; m < emulated_config.rows[c]; m++)
        for (int n = 0; n < emulated_config.bytes[c] / 4; n++) {
            float sums[2] = {0, 0};
            for (int k = 0; k < emulated_config.bytes[a] / 4; k++)
                for (int i = 0; i < 2; i++)
                    sums[i] = fmaf(emulated_float(((uint16_t *)emulated[a][m])[2 * k + i]),
                                   emulated_float(((uint16_t *)emulated[b][k])[2 * n + i]), sums[i]);
            ((float *)emulated[c][m])[n] += sums[0] + sums[1];
        }
}

#undef __AMX_BF16__
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define __AMX_BF16__ 1
#define _tile_loadconfig(config) memcpy(&emulated_config, config, 64)
#define _tile_release() memset(&emulated_config, 0, 64)
#define _tile_zero(tile) memset(emulated[tile], 0, sizeof emulated[tile])
#define _tile_loadd emulated_load
#define _tile_stream_loadd emulated_load
#define _tile_stored emulated_store
#define _tile_dpbf16ps emulated_product
#define syscall(...) 0 /* what asks the system for leave to use them */
