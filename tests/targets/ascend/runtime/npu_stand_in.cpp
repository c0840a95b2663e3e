// npu_stand_in.cpp: AscendCL functions for tests. It refuses what CANN merely advises against, and keeps a list of it.
// Device memory is a mapping of its own that the host cannot touch; kernels are run by a function that Python sets.
#include <sys/mman.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

enum Code {
    kSuccess = 0, kInvalidParam = 100000, kUninitialised = 100001, kRepeated = 100002, kInvalidFile = 100003,
    kNoContext = 107002, kInvalidHandle = 107017, kNoMemory = 207001, kException = 507015, kTimeout = 507046, kAborted = 107020,
};

constexpr uint64_t kArena = 1ull << 30, kSyncBytes = 64;

struct LaunchAttribute { int id; union { uint8_t schedule_mode; uint32_t reserved[4]; } value; };
struct LaunchConfiguration { LaunchAttribute* attributes; size_t count; };

struct Binary { std::string path; };
struct Function { Binary* binary; std::string name; };
struct Stream {
    bool busy = false, aborted = false;
    int outcome = kSuccess;
    std::string text;
};

// 0: the kernel ended; 1: it failed, with a text; 2: it does not end
using Execute = int (*)(void* stream, const char* path, const char* kernel, uint32_t blocks, uint64_t arguments, uint64_t bytes, char* text, size_t room);
using Resolve = int (*)(const char* path, const char* kernel);

struct Failure { int code; std::string text; };

struct Npu {
    std::mutex lock, cores;  // `cores`: every kernel wants them all
    std::condition_variable changed;
    int initialised = 0, devices = 1, chosen = 0;
    uint8_t* arena = nullptr;
    uint64_t used = 0;
    int users = 0;  // while it is 0, touching device memory is a segmentation fault
    std::map<uint64_t, uint64_t> allocations;  // begin -> bytes
    std::set<void*> streams, binaries, functions;
    struct Word { uint64_t value, written; };  // `written`: the number of the copy that did it, from 1
    std::map<uint64_t, std::unique_ptr<Word>> words;  // of the kernel that runs: where a word is -> what the host wrote
    uint64_t copies = 0;
    std::set<uint64_t> in_use, word_allocations;  // allocations of the kernel that runs
    std::string running;                        // the path of its binary
    bool paused = false;
    std::map<std::string, Failure> failures;
    std::vector<std::string> violations, calls;
    Execute execute = nullptr;
    Resolve resolve = nullptr;
};
Npu npu;
int context;  // its address is the handle
thread_local void* current = nullptr;
thread_local std::string recent, given;

int fail(int code, const std::string& text) {
    recent = text + (recent.empty() ? "" : "\n" + recent);
    return code;
}
int violation(int code, const std::string& text) {
    npu.violations.push_back(text);
    return fail(code, text);
}

// Makes device memory accessible to the functions here, and to a kernel.
struct Access {
    Access() {
        std::lock_guard<std::mutex> hold(npu.lock);
        if (npu.users++ == 0 && npu.used) mprotect(npu.arena, npu.used, PROT_READ | PROT_WRITE);
    }
    ~Access() {
        std::lock_guard<std::mutex> hold(npu.lock);
        if (--npu.users == 0 && npu.used) mprotect(npu.arena, npu.used, PROT_NONE);
    }
};

// What every function checks first; with `lock` held.
int enter(const char* function, bool needs_context = true) {
    npu.calls.push_back(function);
    auto planned = npu.failures.find(function);
    if (planned != npu.failures.end()) {
        Failure failure = planned->second;
        npu.failures.erase(planned);
        return fail(failure.code, failure.text);
    }
    if (!npu.initialised) return violation(kUninitialised, std::string(function) + " before aclInit");
    if (needs_context && current != &context) return violation(kNoContext, std::string(function) + " in a thread without context");
    return 0;
}
#define ENTER(needs_context)                           \
    std::unique_lock<std::mutex> hold(npu.lock);            \
    if (int code = enter(__func__, needs_context)) return code

bool on_device(const void* pointer) {
    auto at = reinterpret_cast<uint64_t>(pointer), base = reinterpret_cast<uint64_t>(npu.arena);
    return npu.arena && at >= base && at < base + kArena;
}
// The allocation that holds all these bytes.
const std::pair<const uint64_t, uint64_t>* holder(uint64_t address, uint64_t bytes) {
    auto found = npu.allocations.upper_bound(address);
    if (found == npu.allocations.begin()) return nullptr;
    --found;
    return address + bytes <= found->first + found->second ? &*found : nullptr;
}
uint64_t reserve(uint64_t bytes) {
    if (!npu.arena) {
        void* made = mmap(nullptr, kArena, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED) return 0;
        npu.arena = static_cast<uint8_t*>(made);
    }
    uint64_t place = (npu.used + 63) / 64 * 64, end = (place + bytes + 4096 + 4095) / 4096 * 4096;
    if (end > kArena) return 0;
    npu.used = end;  // never handed out twice: what was freed stays wrong to use
    mprotect(npu.arena, npu.used, PROT_READ | PROT_WRITE);
    memset(npu.arena + place, 0xA5, bytes);
    if (!npu.users) mprotect(npu.arena, npu.used, PROT_NONE);
    return reinterpret_cast<uint64_t>(npu.arena) + place;
}
std::string hex(uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
    return text;
}

void run(Stream* stream, std::string path, std::string kernel, uint32_t blocks, uint64_t arguments, uint64_t bytes) {
    char text[8192] = "";
    int outcome;
    {
        std::lock_guard<std::mutex> all(npu.cores);
        Access access;
        {
            std::lock_guard<std::mutex> hold(npu.lock);
            npu.running = path;
        }
        outcome = npu.execute(stream, path.c_str(), kernel.c_str(), blocks, arguments, bytes, text, sizeof text);
        std::unique_lock<std::mutex> hold(npu.lock);
        npu.words.clear(), npu.word_allocations.clear(), npu.in_use.clear(), npu.running.clear();
        npu.paused = false;
        npu.changed.wait(hold, [&] { return outcome != 2 || stream->aborted; });  // a kernel that hangs holds its cores
    }
    std::lock_guard<std::mutex> hold(npu.lock);
    stream->outcome = stream->aborted ? kAborted : outcome ? kException : kSuccess;
    stream->text = outcome == 1 ? text : "";
    stream->busy = false;
    npu.changed.notify_all();
}

}  // namespace

extern "C" {

// for tests

void npu_set(int devices, Execute execute, Resolve resolve) { npu.devices = devices, npu.execute = execute, npu.resolve = resolve; }
void npu_fail(const char* function, int code, const char* text) {
    std::lock_guard<std::mutex> hold(npu.lock);
    npu.failures[function] = {code, text};
}
static const char* joined(const std::vector<std::string>& lines) {
    given.clear();
    for (const auto& line : lines) given += line + "\n";
    return given.c_str();
}
const char* npu_violations(void) {
    std::lock_guard<std::mutex> hold(npu.lock);
    return joined(npu.violations);
}
const char* npu_calls(void) {
    std::lock_guard<std::mutex> hold(npu.lock);
    return joined(npu.calls);
}
// for the function that runs kernels
uint64_t npu_allocation(uint64_t address) {  // bytes of the allocation that begins there, which the kernel uses
    std::lock_guard<std::mutex> hold(npu.lock);
    auto found = npu.allocations.find(address);
    if (found == npu.allocations.end()) return 0;
    npu.in_use.insert(address);
    return found->second;
}
uint64_t npu_word(uint64_t address) {  // from now on copies to this word go to the cell at the returned address
    std::lock_guard<std::mutex> hold(npu.lock);
    auto* in = holder(address, 8);
    if (!in || address % 8) return 0;
    npu.in_use.insert(in->first), npu.word_allocations.insert(in->first);
    auto& cell = npu.words[address];
    if (!cell) cell = std::make_unique<Npu::Word>(Npu::Word{*reinterpret_cast<uint64_t*>(address), 0});
    return reinterpret_cast<uint64_t>(&cell->value);
}
uint64_t npu_written(uint64_t address) {
    std::lock_guard<std::mutex> hold(npu.lock);
    auto found = npu.words.find(address);
    return found == npu.words.end() ? 0 : found->second->written;
}
void npu_pause(int paused) {
    std::lock_guard<std::mutex> hold(npu.lock);
    npu.paused = paused != 0;
    npu.changed.notify_all();
}
int npu_aborted(void* stream) {
    std::lock_guard<std::mutex> hold(npu.lock);
    return static_cast<Stream*>(stream)->aborted;
}

// AscendCL

const char* aclGetRecentErrMsg(void) {
    given = recent;
    recent.clear();
    return given.empty() ? nullptr : given.c_str();
}
int aclInit(const char* configuration) {
    std::lock_guard<std::mutex> hold(npu.lock);
    npu.calls.push_back(__func__);
    if (configuration) return violation(kInvalidFile, "there is no such configuration");
    if (npu.failures.count(__func__)) {
        Failure failure = npu.failures[__func__];
        npu.failures.erase(__func__);
        return fail(failure.code, failure.text);
    }
    if (npu.initialised++) return fail(kRepeated, "aclInit was called before");
    return 0;
}
int aclFinalize(void) {
    ENTER(false);
    if (npu.chosen) violation(0, "aclFinalize while the device is in use");
    for (auto& [address, bytes] : npu.allocations) {
        if (bytes != kSyncBytes) violation(0, "leaked: " + std::to_string(bytes) + " bytes at " + hex(address));
    }
    if (!npu.streams.empty()) violation(0, "leaked: " + std::to_string(npu.streams.size()) + " streams");
    if (!npu.binaries.empty()) violation(0, "leaked: " + std::to_string(npu.binaries.size()) + " binaries");
    npu.initialised = 0;
    return 0;
}
int aclrtGetDeviceCount(uint32_t* count) {
    ENTER(false);
    *count = uint32_t(npu.devices);
    return 0;
}
int aclrtGetDevice(int32_t* device) {
    std::lock_guard<std::mutex> hold(npu.lock);
    if (current != &context) return fail(kNoContext, "this thread has no device");
    *device = 0;
    return 0;
}
int aclrtSetDevice(int32_t device) {
    ENTER(false);
    if (device < 0 || device >= npu.devices) return violation(kInvalidParam, "there is no device " + std::to_string(device));
    ++npu.chosen;
    current = &context;
    return 0;
}
int aclrtResetDevice(int32_t device) {
    ENTER(false);
    if (device || !npu.chosen) return violation(kInvalidParam, "aclrtResetDevice of a device that was not set");
    if (--npu.chosen == 0) current = nullptr;
    return 0;
}
int aclrtSynchronizeDevice(void) {
    ENTER(true);
    npu.changed.wait(hold, [] { return npu.running.empty(); });
    return 0;
}
const char* aclrtGetSocName(void) { return "Ascend910_stand_in"; }
int aclrtGetCurrentContext(void** found) {
    std::lock_guard<std::mutex> hold(npu.lock);
    if (!current) return fail(kNoContext, "this thread has no context");
    *found = current;
    return 0;
}
int aclrtSetCurrentContext(void* wanted) {
    ENTER(false);
    if (wanted != &context || !npu.chosen) return violation(kInvalidHandle, "aclrtSetCurrentContext: no such context");
    current = wanted;
    return 0;
}
int aclrtCreateStream(void** stream) {
    ENTER(true);
    *stream = new Stream;
    npu.streams.insert(*stream);
    return 0;
}
static int destroy(void* stream, bool force) {
    std::unique_lock<std::mutex> hold(npu.lock);
    if (int code = enter(force ? "aclrtDestroyStreamForce" : "aclrtDestroyStream")) return code;
    if (!npu.streams.count(stream)) return violation(kInvalidHandle, "no such stream to destroy");
    auto* known = static_cast<Stream*>(stream);
    if (known->busy && !force) return violation(kInvalidParam, "aclrtDestroyStream while a kernel runs on it");
    known->aborted = known->aborted || known->busy;
    npu.changed.notify_all();
    npu.changed.wait(hold, [&] { return !known->busy; });
    npu.streams.erase(stream);
    delete known;
    return 0;
}
int aclrtDestroyStream(void* stream) { return destroy(stream, false); }
int aclrtDestroyStreamForce(void* stream) { return destroy(stream, true); }
int aclrtStreamAbort(void* stream) {
    ENTER(true);
    if (!npu.streams.count(stream)) return violation(kInvalidHandle, "no such stream to abort");
    static_cast<Stream*>(stream)->aborted = true;
    npu.changed.notify_all();
    return 0;
}
int aclrtSynchronizeStreamWithTimeout(void* stream, int32_t timeout) {
    ENTER(true);
    if (!npu.streams.count(stream)) return violation(kInvalidHandle, "no such stream to wait for");
    if (timeout != -1 && timeout <= 0) return violation(kInvalidParam, "a timeout is -1 or more than 0");
    auto* known = static_cast<Stream*>(stream);
    auto over = [&] { return !known->busy; };
    if (timeout == -1) npu.changed.wait(hold, over);
    else if (!npu.changed.wait_for(hold, std::chrono::milliseconds(timeout), over)) {
        return known->aborted ? fail(kAborted, "the stream was aborted") : fail(kTimeout, "Stream synchronize timeout");
    }
    int outcome = known->outcome;
    known->outcome = kSuccess;
    return outcome ? fail(outcome, outcome == kAborted ? "the stream was aborted" : known->text) : 0;
}
int aclrtMalloc(void** found, size_t bytes, int policy) {
    ENTER(true);
    if (!bytes || policy) return violation(kInvalidParam, "aclrtMalloc of 0 bytes, or with an unknown policy");
    uint64_t address = reserve(bytes);
    if (!address) return fail(kNoMemory, "device memory is exhausted");
    npu.allocations[address] = bytes;
    *found = reinterpret_cast<void*>(address);
    return 0;
}
int aclrtFree(void* memory) {
    ENTER(true);
    auto address = reinterpret_cast<uint64_t>(memory);
    if (npu.in_use.count(address)) return violation(kInvalidParam, "aclrtFree of memory that a running kernel uses");
    if (!npu.allocations.erase(address)) return violation(kInvalidParam, "aclrtFree of what was not allocated");
    return 0;
}
int aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, int kind) {
    Access access;
    ENTER(true);
    if ((kind != 1 && kind != 2) || bytes > room || !bytes) return violation(kInvalidParam, "aclrtMemcpy: wrong kind or size");
    const void* device = kind == 1 ? to : from;
    const void* host = kind == 1 ? from : to;
    auto address = reinterpret_cast<uint64_t>(device);
    if (on_device(host)) return violation(kInvalidParam, "aclrtMemcpy: a device address stands for host memory");
    if (!on_device(device)) return violation(kInvalidParam, "aclrtMemcpy: " + hex(address) + " is no device address");
    auto* in = holder(address, kind == 1 ? room : bytes);
    if (!in) return violation(kInvalidParam, "aclrtMemcpy: beyond an allocation, at " + hex(address));
    bool used = npu.in_use.count(in->first);
    if (used && kind == 1) {
        auto word = npu.words.find(address);
        if (word == npu.words.end() || bytes != 8) return violation(kInvalidParam, "aclrtMemcpy to memory that a running kernel uses");
        memcpy(&word->second->value, from, 8);
        word->second->written = ++npu.copies;
        return 0;
    }
    // its cores stand still while it asks for a tiling: then, and only then, the host may look at what they computed
    auto still = [&] { return npu.paused || !npu.in_use.count(address); };
    if (used && !npu.word_allocations.count(in->first) && !npu.changed.wait_for(hold, std::chrono::seconds(2), still)) {
        return violation(kInvalidParam, "aclrtMemcpy from memory that a running kernel may be writing");
    }
    memcpy(to, from, bytes);
    return 0;
}
int aclrtCmoAsync(void* memory, size_t bytes, int kind, void* stream) {
    ENTER(true);
    if (kind || !npu.streams.count(stream)) return violation(kInvalidParam, "aclrtCmoAsync: wrong kind or stream");
    if (static_cast<Stream*>(stream)->busy) return violation(kInvalidParam, "aclrtCmoAsync behind the kernel that asked for it");
    if (!holder(reinterpret_cast<uint64_t>(memory), bytes)) return violation(kInvalidParam, "aclrtCmoAsync: beyond an allocation");
    return 0;
}
int aclrtBinaryLoadFromFile(const char* path, void* options, void** handle) {
    ENTER(true);
    if (options || path[0] != '/') return violation(kInvalidFile, "an absolute path is needed, and no options");
    FILE* file = fopen(path, "rb");
    char magic[4] = {};
    bool read = file && fread(magic, 1, 4, file) == 4;
    if (file) fclose(file);
    if (!read || memcmp(magic, "\177ELF", 4)) return fail(kInvalidFile, std::string(path) + " is no ELF file");
    *handle = new Binary{path};
    npu.binaries.insert(*handle);
    return 0;
}
int aclrtBinaryUnLoad(void* handle) {
    ENTER(true);
    if (!npu.binaries.erase(handle)) return violation(kInvalidHandle, "aclrtBinaryUnLoad: no such binary");
    if (npu.running == static_cast<Binary*>(handle)->path) violation(0, "aclrtBinaryUnLoad while its kernel runs");
    return 0;  // functions keep a pointer to it, so that their use is found
}
int aclrtBinaryGetFunction(void* handle, const char* name, void** function) {
    std::string path;
    {
        ENTER(true);
        if (!npu.binaries.count(handle)) return violation(kInvalidHandle, "aclrtBinaryGetFunction: no such binary");
        path = static_cast<Binary*>(handle)->path;
    }
    if (!npu.resolve(path.c_str(), name)) return fail(kInvalidParam, std::string("there is no kernel ") + name + " in " + path);
    std::lock_guard<std::mutex> hold(npu.lock);
    *function = new Function{static_cast<Binary*>(handle), name};
    npu.functions.insert(*function);
    return 0;
}
int aclrtGetHardwareSyncAddr(void** address) {
    ENTER(true);
    static uint64_t place = 0;
    if (!place) npu.allocations[place = reserve(kSyncBytes)] = kSyncBytes;
    *address = reinterpret_cast<void*>(place);
    return 0;
}
int aclrtLaunchKernelV2(void* handle, uint32_t blocks, const void* arguments, size_t bytes, LaunchConfiguration* configuration, void* stream) {
    ENTER(true);
    auto* function = static_cast<Function*>(handle);
    if (!npu.functions.count(handle) || !npu.binaries.count(function->binary)) return violation(kInvalidHandle, "launch of no function");
    if (!npu.streams.count(stream)) return violation(kInvalidHandle, "launch on no stream");
    auto* known = static_cast<Stream*>(stream);
    if (known->busy || known->aborted) return violation(kInvalidParam, "launch on a stream that is busy or was aborted");
    if (!on_device(arguments) || !holder(reinterpret_cast<uint64_t>(arguments), bytes)) return violation(kInvalidParam, "the arguments are not in device memory");
    bool batch = configuration && configuration->count == 1 && configuration->attributes->id == 1 && configuration->attributes->value.schedule_mode == 1;
    if (!batch) return violation(kInvalidParam, "cores of this kernel wait for each other: it needs the batch schedule");
    known->busy = true;
    std::thread(run, known, function->binary->path, function->name, blocks, reinterpret_cast<uint64_t>(arguments), bytes).detach();
    return 0;
}
}
