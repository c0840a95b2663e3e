// kernel_operator.h: what emitted entries use of the device compiler and of Ascend C, declared and not defined, so that
// libclang can parse them. Names and signatures only, each with the public page that states it:
//
//   [cce NNNN]  https://www.hiascend.com/document/detail/zh/canncommercial/850/API/cceintrinsicapi/cceapi_NNNN.html
//   [api NNNN]  https://www.hiascend.com/document/detail/en/canncommercial/850/API/ascendcopapi/atlasascendc_api_07_NNNN.html
//   [spaces]    .../zh/CANNCommunityEdition/83RC1alpha002/opdevg/cceintrinsicguide/cceprogram_0013.html
//   [set flag]  .../doc_center/source/zh/canncommercial/80RC3/apiref/ascendcopapi/atlasascendc_api_07_0260.html
//   [function]  .../en/canncommercial/850/opdevg/Ascendcopdevg/atlas_ascendc_10_0014.html
//   [macros]    .../zh/canncommercial/latest/compiler/BishengCompiler/atlas_bisheng_10_0005.html
//   [same as]   no public page has the builtin; the page of the Ascend C function of the same meaning has the type
//   [no page]   no public page found
//
// Where a page allows more than emitted code needs, this file allows less: enums instead of integers, operands inside
// their documented range, no cache maintenance outside global memory.
#pragma once
#include <cstdint>

#if defined(__DAV_CUBE__) == defined(__DAV_VEC__)
#error "define __DAV_CUBE__ or __DAV_VEC__, as the device compiler does for the class of cores it compiles for"  // [macros]
#endif

// qualifiers: [spaces], [function]. The numbers of the address spaces are arbitrary: they only have to differ.
#define __global__ __attribute__((annotate("global")))
#define __aicore__ __attribute__((annotate("aicore")))
#define __gm__ __attribute__((address_space(1)))
#define __ubuf__ __attribute__((address_space(2)))
#define __cbuf__ __attribute__((address_space(3)))
#define __ca__ __attribute__((address_space(4)))
#define __cb__ __attribute__((address_space(5)))
#define __cc__ __attribute__((address_space(6)))
#define GM_ADDR __gm__ uint8_t*  // [function]

#define SK_LIMIT(wrong, message) __attribute__((diagnose_if(wrong, "operand: " message, "error")))

// the core that asks
__aicore__ int64_t get_block_idx();    // [same as] GetBlockIdx [api 0185]
__aicore__ int64_t get_block_num();    // [no page]
__aicore__ int64_t get_subblockid();   // [same as] GetSubBlockIdx [api 0281]
__aicore__ int64_t get_subblockdim();  // [no page]
__aicore__ int64_t get_coreid();       // [no page]
__aicore__ int64_t get_para_base();    // [no page]
__aicore__ int64_t get_sys_cnt();      // [same as] GetSystemCycle [api 0282]
__aicore__ void trap();                // [same as] Trap [api 0196]

// pipes
enum pipe_t {  // [cce 0105]
    PIPE_S = 0,
    PIPE_V = 1,
    PIPE_M = 2,
    PIPE_MTE1 = 3,
    PIPE_MTE2 = 4,
    PIPE_MTE3 = 5,
    PIPE_ALL = 6,
    PIPE_FIX = 10,
};
__aicore__ void pipe_barrier(pipe_t pipe)  // [cce 0105]
    SK_LIMIT(pipe == PIPE_S, "pipe_barrier(PIPE_S) is a hardware error");

// flags between cores
__aicore__ void set_ffts_base_addr(uint64_t config);  // [cce 0111]
__aicore__ void ffts_cross_core_sync(pipe_t pipe, uint64_t config)  // [cce 0112], its pipes [set flag]
    SK_LIMIT(pipe == PIPE_S || pipe == PIPE_ALL, "PIPE_S and PIPE_ALL are not allowed as the pipe of a cross-core set")
    SK_LIMIT((config & 15) != 1 || config >> 12 != 0, "config is 1 | mode << 4 | flag << 8, with a flag from 0 to 15")
    SK_LIMIT((config >> 4 & 15) > 2, "the mode of a cross-core set is 0, 1 or 2");
__aicore__ void wait_flag_dev(int64_t flagID)  // [cce 0113]
    SK_LIMIT(flagID < 0 || flagID > 15, "a flag is a number from 0 to 15");

// Caches. The page of dcci has integers; the names of the values are those of CacheLine and DcciDst [api 0177], the names
// of the types are [no page].
enum cache_line_t { SINGLE_CACHE_LINE = 0, ENTIRE_DATA_CACHE = 1 };
enum dcci_dst_t { CACHELINE_ALL = 0, CACHELINE_UB = 1, CACHELINE_OUT = 2, CACHELINE_ATOMIC = 3 };
__aicore__ void dcci(__gm__ void* dst, cache_line_t entire, dcci_dst_t type)  // [cce 0108]
    SK_LIMIT(type != CACHELINE_OUT, "lines of global memory are CACHELINE_OUT");

// [no page] for the builtin; the unit of 2 KiB and the bound, less than the instruction cache holds (32 KiB on a cube core,
// 16 KiB on a vector core), are those of ICachePreLoad [api 0276]
#ifdef __DAV_CUBE__
#define SK_INSTRUCTION_CACHE_LINES 16
#else
#define SK_INSTRUCTION_CACHE_LINES 8
#endif
__aicore__ void preload(const void* addr, int64_t prefetchLen)
    SK_LIMIT(prefetchLen < 1 || prefetchLen >= SK_INSTRUCTION_CACHE_LINES, "a preload covers at least one line and less than the instruction cache");

// the type of a kernel [api 0218]
enum KernelMetaType {
    KERNEL_TYPE_AIV_ONLY,
    KERNEL_TYPE_AIC_ONLY,
    KERNEL_TYPE_MIX_AIV_1_0,
    KERNEL_TYPE_MIX_AIC_1_0,
    KERNEL_TYPE_MIX_AIC_1_1,
    KERNEL_TYPE_MIX_AIC_1_2,
    KERNEL_TYPE_AICORE,
    KERNEL_TYPE_VECTORCORE,
    KERNEL_TYPE_MIX_AICORE,
    KERNEL_TYPE_MIX_VECTOR_CORE,
    KERNEL_TYPE_MAX,
};
#ifdef __DAV_CUBE__
constexpr bool sk_runs_here(KernelMetaType type) {
    return type == KERNEL_TYPE_AIC_ONLY || type == KERNEL_TYPE_MIX_AIC_1_0 || type == KERNEL_TYPE_MIX_AIC_1_1 ||
           type == KERNEL_TYPE_MIX_AIC_1_2;
}
#else
constexpr bool sk_runs_here(KernelMetaType type) {
    return type == KERNEL_TYPE_AIV_ONLY || type == KERNEL_TYPE_MIX_AIV_1_0 || type == KERNEL_TYPE_MIX_AIC_1_1 ||
           type == KERNEL_TYPE_MIX_AIC_1_2;
}
#endif
#define KERNEL_TASK_TYPE_DEFAULT(value) \
    static_assert(sk_runs_here(value), "a kernel of this type has no core of the class that this file is parsed for")
