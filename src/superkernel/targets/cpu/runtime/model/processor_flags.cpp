// processor_flags.cpp: CPUID and /proc/cpuinfo -> the flags of this processor.
#include "processor_flags.h"

#include <fcntl.h>
#include <unistd.h>

#include <sstream>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace sk::model {
namespace {

// The flags of the first processor that the file lists; empty: unknown.
std::set<std::string> flags_in_file(const char* path) {
    std::string text(size_t(64) << 10, '\0');
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return {};
    size_t had = 0;
    for (ssize_t got = 1; got > 0 && had < text.size(); had += size_t(got)) {
        got = read(file, &text[had], text.size() - had);
        if (got <= 0) break;
    }
    close(file);
    std::istringstream lines(text.substr(0, had));
    for (std::string line; std::getline(lines, line);) {
        if (line.compare(0, 5, "flags") != 0 && line.compare(0, 8, "Features") != 0) continue;
        std::istringstream words(line.substr(line.find(':') + 1));
        std::set<std::string> flags;
        for (std::string word; words >> word;) flags.insert(word);
        return flags;
    }
    return {};
}

#if defined(__x86_64__)

enum Register { kEax, kEbx, kEcx, kEdx };
// Registers that the system must save: of SSE and AVX, of AVX-512, of AMX. As in XCR0.
constexpr unsigned kNone = 0, kAvx = 0x6, kAvx512 = 0xe6, kAmx = 0x60000;

struct Word {
    unsigned leaf, part;
    Register in;
    unsigned saved;
    const char* flags;  // NAME@BIT
};

constexpr Word kWords[] = {
    {1, 0, kEdx, kNone, "sse2@26"},
    {1, 0, kEcx, kNone, "pni@0 pclmulqdq@1 ssse3@9 cx16@13 sse4_1@19 sse4_2@20 movbe@22 popcnt@23 aes@25 xsave@26 rdrand@30"},
    {1, 0, kEcx, kAvx, "fma@12 avx@28 f16c@29"},
    {7, 0, kEbx, kNone, "fsgsbase@0 bmi1@3 bmi2@8 rtm@11 rdseed@18 adx@19 clflushopt@23 clwb@24 sha_ni@29"},
    {7, 0, kEbx, kAvx, "avx2@5"},
    {7, 0, kEbx, kAvx512, "avx512f@16 avx512dq@17 avx512ifma@21 avx512cd@28 avx512bw@30 avx512vl@31"},
    {7, 0, kEcx, kNone, "waitpkg@5 gfni@8 rdpid@22 cldemote@25 movdiri@27 movdir64b@28"},
    {7, 0, kEcx, kAvx, "vaes@9 vpclmulqdq@10"},
    {7, 0, kEcx, kAvx512, "avx512vbmi@1 avx512_vbmi2@6 avx512_vnni@11 avx512_bitalg@12 avx512_vpopcntdq@14"},
    {7, 0, kEdx, kNone, "serialize@14"},
    {7, 0, kEdx, kAvx512, "avx512_fp16@23"},
    {7, 0, kEdx, kAmx, "amx_bf16@22 amx_tile@24 amx_int8@25"},
    {7, 1, kEax, kAvx, "avx_vnni@4 avx_ifma@23"},
    {7, 1, kEax, kAvx512, "avx512_bf16@5"},
    {13, 1, kEax, kNone, "xsaveopt@0 xsavec@1 xsaves@3"},
    {0x80000001, 0, kEcx, kNone, "lahf_lm@0 abm@5 sse4a@6 3dnowprefetch@8 tbm@21"},
    {0x80000001, 0, kEcx, kAvx, "xop@11 fma4@16"},
    {0x80000001, 0, kEdx, kNone, "rdtscp@27"},
};

// The registers that the system saves for its threads.
unsigned saved_registers() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & bit_OSXSAVE) == 0) return 0;
    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return eax;
}

// The flags that CPUID reports.
struct Told {
    std::set<std::string> has, lacks;
};

Told told_flags() {
    const unsigned saved = saved_registers();
    Told told;
    for (const Word& word : kWords) {
        unsigned found[4] = {};
        __get_cpuid_count(word.leaf, word.part, &found[kEax], &found[kEbx], &found[kEcx], &found[kEdx]);
        std::istringstream named(word.flags);
        for (std::string flag; named >> flag;) {
            const size_t at = flag.find('@');
            const bool is_there = (found[word.in] >> std::stoi(flag.substr(at + 1)) & 1) != 0;
            const bool is_usable = (saved & word.saved) == word.saved;
            (is_there && is_usable ? told.has : told.lacks).insert(flag.substr(0, at));
        }
    }
    return told;
}

std::set<std::string> corrected(std::set<std::string> flags) {
    const Told told = told_flags();
    if (flags.empty()) return told.has;
    for (const std::string& flag : told.lacks) flags.erase(flag);
    return flags;
}

#else

std::set<std::string> corrected(std::set<std::string> flags) { return flags; }

#endif

}  // namespace

std::set<std::string> processor_flags(const char* cpuinfo) { return corrected(flags_in_file(cpuinfo)); }

}  // namespace sk::model
