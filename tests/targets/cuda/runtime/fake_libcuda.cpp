// A stand-in for libcuda.so.1 that is stricter than the driver: every handle is checked, every misuse is written down.
// Memory of the device is memory of the host; whole pages of 2 MB can be opened by another process. A launch calls a
// function of the test, which plays the kernel.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

using Result = int;
namespace {
enum { kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kNoDevice = 100, kInvalidImage = 200,
       kInvalidContext = 201, kInvalidHandle = 400, kNotFound = 500, kNotReady = 600, kTooLarge = 720,
       kCaptureUnsupported = 900, kCaptureImplicit = 906 };

struct Module { int device; std::string text; };
struct Function { void* module; std::string name; int shared = -1; bool large_clusters = false; std::set<unsigned> cluster_sizes; };
struct Stream { int device; int capture = 0; bool open = true; int green_sms = 0; };
struct Running { uint64_t state; };
struct IpcHandle { char magic[8]; int pid, descriptor; uint64_t size; char room[40]; };  // CUipcMemHandle
static_assert(sizeof(IpcHandle) == 64);
constexpr size_t kIpcPage = 2 << 20, kIpcHeader = 4096;  // the header names the processes that have opened it
using KernelCallback = int (*)(const char* entry, uint64_t state, uint64_t* values, uint64_t stream, int captured);

struct Fake {
  std::recursive_mutex lock;
  int devices = 1, sms = 8, version = 13000, blocks_per_sm = 1, affinity_sms = 0, mps = 0, uuid = 7;
  int cluster_launch = 1, cluster_sms = 0;  // SMs that clusters of more than two can use; 0: all
  bool started = false, cooperative = true;
  size_t memory = 1 << 30, used = 0;
  std::map<uint64_t, size_t> allocations, host_allocations, opened;
  std::map<uint64_t, int> descriptors;  // of allocations that another process can open
  std::map<void*, Module*> modules;
  std::map<void*, Function*> functions;
  std::map<std::string, std::vector<char>*> globals;
  std::map<void*, Stream*> streams;
  std::set<void*> events;
  std::map<std::string, std::pair<int, int>> planted;  // function -> code, calls before it
  std::map<std::string, int> calls;
  std::string violations, log;
  KernelCallback kernel = nullptr;
  int legacy_capture = 0;  // 1: another stream of this process captures in a way that the default stream may not join
  int sticky = 0;
  int contexts[8] = {};
  uint64_t config_threads = 0, config_blocks = 0, config_shared = 0;
  int config_attributes = 0, config_cluster = 0;
  std::map<unsigned, int64_t> launch_ns;  // blocks of a cluster -> what a cooperative launch takes; empty: events are 1 ms apart
  int64_t clock_ns = 0;
  std::map<void*, int64_t> recorded;  // event -> when
};
Fake* fake = new Fake;
thread_local void* current_context = nullptr;
thread_local int capture_mode = 0;

void violate(const std::string& what) { fake->violations += what + "\n"; }

Result planted(const char* name) {
  fake->calls[name]++;
  auto found = fake->planted.find(name);
  if (found != fake->planted.end()) {
    if (found->second.second-- <= 0) {
      int code = found->second.first;
      fake->planted.erase(found);
      return code;
    }
  }
  static const std::set<std::string> unaffected = {"cuCtxGetCurrent", "cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode"};
  return unaffected.count(name) ? kSuccess : fake->sticky;
}

Result need_context(const char* name) {
  if (!current_context) { violate(std::string(name) + " without a current context"); return kInvalidContext; }
  return kSuccess;
}
int device_of_context() { return int(reinterpret_cast<uintptr_t>(current_context) - 0x1000) / 16; }
void* context_of(int device) { return reinterpret_cast<void*>(uintptr_t(0x1000 + 16 * device)); }

bool inside(const std::map<uint64_t, size_t>& areas, uint64_t address, size_t size) {
  auto next = areas.upper_bound(address);
  if (next == areas.begin()) return false;
  --next;
  return address >= next->first && address + size <= next->first + next->second;
}
bool on_device(uint64_t address, size_t size) { return inside(fake->allocations, address, size) || inside(fake->opened, address, size); }
// The processes that have opened memory; the driver closes what a process that ended had open.
std::atomic<int>* openers(uint64_t address) { return reinterpret_cast<std::atomic<int>*>(address - kIpcHeader); }
void replace_opener(uint64_t address, int old, int pid) {
  for (int i = 0; i < 64; i++) { int expected = old; if (openers(address)[i].compare_exchange_strong(expected, pid)) return; }
}
bool has_openers(uint64_t address) {
  for (int i = 0; i < 64; i++)
    if (int pid = openers(address)[i]) {
      FILE* status = fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "r");
      char state = 'X';
      if (status && fscanf(status, "%*d %*[^)]) %c", &state) != 1) state = 'X';
      if (status) fclose(status);
      if (state != 'Z' && state != 'X') return true;  // a process that ended may not have been noticed by its parent
    }
  return false;
}
bool in_global(uint64_t address, size_t size) {
  for (auto& [name, content] : fake->globals) {
    uint64_t begin = reinterpret_cast<uint64_t>(content->data());
    if (address >= begin && address + size <= begin + content->size()) return true;
  }
  return false;
}
std::string field(const std::string& text, const std::string& key) {
  auto at = text.find(" " + key + "=");
  if (at == std::string::npos) return "";
  at += key.size() + 2;
  return text.substr(at, text.find_first_of(" \n", at) - at);
}
bool stream_known(void* stream) { return !stream || fake->streams.count(stream); }
Stream* find_stream(void* stream) { return stream ? fake->streams[stream] : nullptr; }
}  // namespace

#define ENTER(name) std::lock_guard<std::recursive_mutex> guard(fake->lock); \
  if (Result code = planted(name)) return code; \
  if (!fake->started) { violate(std::string(name) + " before cuInit"); return kNotInitialized; }
#define IN_CONTEXT(name) ENTER(name) if (Result code = need_context(name)) return code;
#define UNCAPTURED(name) IN_CONTEXT(name) \
  if (fake->legacy_capture && capture_mode != 2) { violate(std::string(name) + " breaks a capture"); return kCaptureUnsupported; }

extern "C" {
// ---- of the test
void fake_start(int devices, int sms) { fake = new Fake; fake->devices = devices; fake->sms = sms; current_context = nullptr; }
void fake_set(const char* what, int64_t value) {
  std::string name = what;
  if (name == "version") fake->version = int(value);
  else if (name == "blocks_per_sm") fake->blocks_per_sm = int(value);
  else if (name == "affinity_sms") fake->affinity_sms = int(value);
  else if (name == "sms") fake->sms = int(value);
  else if (name == "mps") fake->mps = int(value);
  else if (name == "uuid") fake->uuid = int(value);
  else if (name == "cooperative") fake->cooperative = value;
  else if (name == "cluster_launch") fake->cluster_launch = int(value);
  else if (name == "cluster_sms") fake->cluster_sms = int(value);
  else if (name == "memory") fake->memory = size_t(value);
  else if (name == "legacy_capture") fake->legacy_capture = int(value);
  else if (name == "sticky") fake->sticky = int(value);
  else if (name.rfind("launch_ns_", 0) == 0) fake->launch_ns[unsigned(std::stoi(name.substr(10)))] = value;
  else abort();
}
int64_t fake_get(const char* what) {
  std::string name = what;
  if (name == "used") return int64_t(fake->used);
  if (name == "modules") return int64_t(fake->modules.size());
  if (name == "allocations") return int64_t(fake->allocations.size());
  if (name == "opened") return int64_t(fake->opened.size());
  if (name == "host_allocations") return int64_t(fake->host_allocations.size());
  if (name == "threads") return int64_t(fake->config_threads);
  if (name == "blocks") return int64_t(fake->config_blocks);
  if (name == "shared") return int64_t(fake->config_shared);
  if (name == "attributes") return fake->config_attributes;
  if (name == "cluster") return fake->config_cluster;
  return fake->calls[name];
}
void fake_plant(const char* function, int code, int after) { fake->planted[function] = {code, after}; }
const char* fake_violations() { return fake->violations.c_str(); }
void fake_kernel(KernelCallback kernel) { fake->kernel = kernel; }
void fake_global(const char* name, int64_t size) { fake->globals[name] = new std::vector<char>(size_t(size)); }
const void* fake_global_content(const char* name) { return fake->globals.at(name)->data(); }
void* fake_stream(int device, int green_sms) {
  auto* stream = new Stream{device}; stream->green_sms = green_sms; fake->streams[stream] = stream; return stream; }
void fake_capture(void* stream, int status) { fake->streams.at(stream)->capture = status; }
// the number-th piece of memory that a kernel can reach; 0: there are no more
uint64_t fake_memory(int64_t number, int64_t* size) {
  for (auto* areas : {&fake->allocations, &fake->host_allocations, &fake->opened})
    for (auto& [address, bytes] : *areas)
      if (!number--) { *size = int64_t(bytes); return address; }
  return 0;
}
void fake_leave_context() { current_context = nullptr; }

// ---- the process
Result cuInit(unsigned flags) {
  if (Result code = planted("cuInit")) return code;
  if (flags) return kInvalidValue;
  if (!fake->devices) return kNoDevice;
  fake->started = true;
  return kSuccess;
}
Result cuDriverGetVersion(int* version) { *version = fake->version; return kSuccess; }
Result cuGetErrorName(int code, const char** name) {
  static const std::map<int, const char*> names = {{1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"},
    {100, "CUDA_ERROR_NO_DEVICE"}, {200, "CUDA_ERROR_INVALID_IMAGE"}, {201, "CUDA_ERROR_INVALID_CONTEXT"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"}, {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}, {400, "CUDA_ERROR_INVALID_HANDLE"},
    {500, "CUDA_ERROR_NOT_FOUND"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {719, "CUDA_ERROR_LAUNCH_FAILED"},
    {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"}, {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}, {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"}};
  auto found = names.find(code);
  if (found == names.end()) { *name = nullptr; return kInvalidValue; }
  *name = found->second;
  return kSuccess;
}
Result cuGetErrorString(int code, const char** text) {
  *text = code == 700 ? "an illegal memory access was encountered" : code == 2 ? "out of memory" : nullptr;
  return *text ? kSuccess : kInvalidValue;
}

// ---- devices and contexts
Result cuDeviceGetCount(int* count) { ENTER("cuDeviceGetCount") *count = fake->devices; return kSuccess; }
Result cuDeviceGet(int* device, int index) {
  ENTER("cuDeviceGet") if (index < 0 || index >= fake->devices) return 101; *device = index; return kSuccess; }
Result cuDeviceGetName(char* name, int size, int device) {
  ENTER("cuDeviceGetName") snprintf(name, size_t(size), "Fake GPU %d", device); return kSuccess; }
Result cuDeviceGetUuid_v2(void* uuid, int device) { ENTER("cuDeviceGetUuid_v2") memset(uuid, fake->uuid + device, 16); return kSuccess; }
Result cuDeviceGetAttribute(int* value, int which, int device) {
  ENTER("cuDeviceGetAttribute") (void)device;
  static const std::map<int, int> values = {{1, 1024}, {13, 1980000}, {38, 60 << 20}, {39, 2048}, {75, 9}, {76, 0},
                                            {81, 233472}, {82, 65536}, {97, 232448}};
  if (which == 16) *value = fake->sms;
  else if (which == 95) *value = fake->cooperative;
  else if (which == 120) *value = fake->cluster_launch;
  else if (which == 133) *value = fake->mps;
  else if (values.count(which)) *value = values.at(which);
  else { violate("an attribute that no test knows"); return kInvalidValue; }
  return kSuccess;
}
Result cuDeviceGetExecAffinitySupport(int* supported, int, int) {
  ENTER("cuDeviceGetExecAffinitySupport") *supported = fake->affinity_sms != 0; return kSuccess; }
Result cuDevicePrimaryCtxRetain(void** context, int device) {
  ENTER("cuDevicePrimaryCtxRetain") fake->contexts[device]++; *context = context_of(device); return kSuccess; }
Result cuCtxGetCurrent(void** context) { ENTER("cuCtxGetCurrent") *context = current_context; return kSuccess; }
Result cuCtxSetCurrent(void* context) {
  ENTER("cuCtxSetCurrent")
  for (int i = 0; i < fake->devices; i++)
    if (context == context_of(i) && fake->contexts[i]) { current_context = context; return kSuccess; }
  violate("cuCtxSetCurrent of a context that was not retained");
  return kInvalidContext;
}
Result cuCtxSynchronize() { IN_CONTEXT("cuCtxSynchronize") return kSuccess; }
Result cuCtxGetExecAffinity(int* parameter, int) {
  IN_CONTEXT("cuCtxGetExecAffinity") parameter[0] = 0; parameter[1] = fake->affinity_sms; return kSuccess; }
Result cuStreamGetGreenCtx(void* stream, void** context) {
  IN_CONTEXT("cuStreamGetGreenCtx")
  if (!stream_known(stream)) { violate("cuStreamGetGreenCtx of an unknown stream"); return kInvalidHandle; }
  *context = find_stream(stream)->green_sms ? stream : nullptr;
  return kSuccess;
}
Result cuGreenCtxGetDevResource(void* context, char* resource, int type) {
  IN_CONTEXT("cuGreenCtxGetDevResource") (void)type;
  int sms = fake->streams.at(context)->green_sms; memcpy(resource + 96, &sms, 4); return kSuccess;
}

// ---- modules
Result cuModuleLoadData(void** module, const void* image) {
  IN_CONTEXT("cuModuleLoadData")
  const char* text = static_cast<const char*>(image);
  bool elf = !strncmp(text, "\177ELF", 4);  // of an assembler: its symbols are not looked at
  if (!elf && strncmp(text, "FAKECUBIN", 9) && strncmp(text, "\n.version", 9)) return kInvalidImage;
  auto* made = new Module{device_of_context(), elf ? "ELF" : text};
  fake->modules[made] = made;
  *module = made;
  return kSuccess;
}
Result cuModuleUnload(void* module) {
  IN_CONTEXT("cuModuleUnload")
  if (!fake->modules.erase(module)) { violate("cuModuleUnload of an unknown module"); return kInvalidHandle; }
  return kSuccess;
}
Result cuModuleGetFunction(void** function, void* module, const char* name) {
  IN_CONTEXT("cuModuleGetFunction")
  if (!fake->modules.count(module)) { violate("cuModuleGetFunction of an unknown module"); return kInvalidHandle; }
  const std::string& text = fake->modules[module]->text;
  if (text != "ELF" && text.find(name) == std::string::npos) return kNotFound;
  auto* made = new Function{module, name};
  fake->functions[made] = made;
  *function = made;
  return kSuccess;
}
Result cuModuleGetGlobal_v2(uint64_t* address, size_t* size, void* module, const char* name) {
  IN_CONTEXT("cuModuleGetGlobal_v2")
  if (!fake->modules.count(module)) { violate("cuModuleGetGlobal of an unknown module"); return kInvalidHandle; }
  if (!fake->globals.count(name)) return kNotFound;
  *address = reinterpret_cast<uint64_t>(fake->globals[name]->data());
  *size = fake->globals[name]->size();
  return kSuccess;
}
static Function* live(void* function, const char* what) {
  auto found = fake->functions.find(function);
  if (found == fake->functions.end() || !fake->modules.count(found->second->module)) {
    violate(std::string(what) + " of a function whose module is not loaded");
    return nullptr;
  }
  return found->second;
}
Result cuFuncGetAttribute(int* value, int which, void* function) {
  IN_CONTEXT("cuFuncGetAttribute")
  Function* found = live(function, "cuFuncGetAttribute");
  if (!found) return kInvalidHandle;
  const std::string& text = fake->modules[found->module]->text;
  *value = atoi(field(text, which == 4 ? "registers" : which == 1 ? "static" : "other").c_str());
  return kSuccess;
}
Result cuFuncSetAttribute(void* function, int which, int value) {
  IN_CONTEXT("cuFuncSetAttribute")
  Function* found = live(function, "cuFuncSetAttribute");
  if (!found) return kInvalidHandle;
  if (which == 14 && value == 1) { found->large_clusters = true; return kSuccess; }
  if (which != 8 || value < 0 || value > 232448) { violate("cuFuncSetAttribute"); return kInvalidValue; }
  found->shared = value;
  return kSuccess;
}
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads, size_t shared) {
  IN_CONTEXT("cuOccupancyMaxActiveBlocksPerMultiprocessor")
  Function* found = live(function, "occupancy");
  if (!found) return kInvalidHandle;
  if (found->shared < int(shared)) { violate("occupancy before the shared memory was allowed"); return kInvalidValue; }
  (void)threads;
  *blocks = fake->blocks_per_sm;
  return kSuccess;
}
struct Attribute { int id; char padding[4]; union { char room[64]; int cooperative; unsigned cluster[3]; } value; };
struct Config { unsigned grid[3], block[3], shared; void* stream; Attribute* attributes; unsigned count; };
// Blocks of a cluster, 1 without the attribute; 0: the driver refuses them.
static unsigned cluster_of(const Config* config, Function* function, bool* cooperative) {
  unsigned cluster = 1;
  *cooperative = false;
  for (unsigned i = 0; i < config->count; i++) {
    const Attribute& attribute = config->attributes[i];
    if (attribute.id == 2) { *cooperative = attribute.value.cooperative; continue; }
    if (attribute.id != 4) { violate("an unknown launch attribute"); return 0; }
    const unsigned* size = attribute.value.cluster;
    cluster = size[0];
    if (cluster < 2 || cluster > 16 || (cluster & (cluster - 1)) || size[1] != 1 || size[2] != 1) { violate("the size of a cluster"); return 0; }
    if (config->grid[0] % cluster) { violate("a grid that is not made of whole clusters"); return 0; }
    if (cluster > 8 && !function->large_clusters) { violate("a cluster of more than 8 blocks that was not allowed"); return 0; }
    if (!fake->cluster_launch) { violate("a cluster on a device without clusters"); return 0; }
  }
  return cluster;
}
static unsigned resident_clusters(const Config* config, unsigned cluster) {
  Stream* stream = find_stream(config->stream);
  int sms = stream && stream->green_sms ? stream->green_sms : fake->affinity_sms ? fake->affinity_sms : fake->sms;
  if (fake->cluster_sms && cluster > 2 && fake->cluster_sms < sms) sms = fake->cluster_sms;
  return unsigned(sms) / cluster * unsigned(fake->blocks_per_sm);
}
Result cuOccupancyMaxActiveClusters(int* clusters, void* function, const Config* config) {
  IN_CONTEXT("cuOccupancyMaxActiveClusters")
  Function* found = live(function, "cuOccupancyMaxActiveClusters");
  if (!found || !stream_known(config->stream)) return kInvalidHandle;
  if (found->shared < int(config->shared)) { violate("clusters before the shared memory was allowed"); return kInvalidValue; }
  bool cooperative;
  unsigned cluster = cluster_of(config, found, &cooperative);
  if (!cluster) return kInvalidValue;
  if (cooperative) { violate("cuOccupancyMaxActiveClusters with another attribute than the cluster"); return kInvalidValue; }
  if (cluster < 2) { violate("cuOccupancyMaxActiveClusters without a cluster"); return kInvalidValue; }
  found->cluster_sizes.insert(cluster);
  *clusters = int(resident_clusters(config, cluster));
  return kSuccess;
}
static Result check_launch(const Config* config, void* function, void** parameters, void** extra, int* captured, bool* cooperative, const char** name) {
  ENTER("cuLaunchKernelEx")
  if (!current_context) return kInvalidContext;  // a caller may try, and enter then
  Function* found = live(function, "cuLaunchKernelEx");
  if (!found || !stream_known(config->stream)) {
    violate("cuLaunchKernelEx of an unknown function or stream");
    return kInvalidHandle;
  }
  if (fake->modules[found->module]->device != device_of_context()) { violate("launch in the context of another device"); return kInvalidHandle; }
  Stream* stream = find_stream(config->stream);
  if (stream && stream->device != device_of_context()) { violate("launch on a stream of another device"); return kInvalidHandle; }
  if (extra || !parameters) { violate("parameters of a launch"); return kInvalidValue; }
  unsigned threads = config->block[0] * config->block[1] * config->block[2];
  unsigned blocks = config->grid[0] * config->grid[1] * config->grid[2];
  if (!threads || threads > 1024 || !blocks) return kInvalidValue;
  if (config->shared > 49152 && found->shared < int(config->shared)) { violate("more shared memory than was allowed"); return kInvalidValue; }
  unsigned cluster = cluster_of(config, found, cooperative);
  if (!cluster) return kInvalidValue;
  if (cluster > 1 && !found->cluster_sizes.count(cluster)) { violate("a launch in clusters that were not asked for"); return kInvalidValue; }
  if (cluster > 1 && *cooperative && blocks / cluster > resident_clusters(config, cluster)) return kTooLarge;
  int sms = stream && stream->green_sms ? stream->green_sms : fake->affinity_sms ? fake->affinity_sms : fake->sms;
  if (*cooperative && blocks > unsigned(sms * fake->blocks_per_sm)) return kTooLarge;
  if (!config->stream && fake->legacy_capture) { violate("a launch on the default stream during a capture"); return kCaptureImplicit; }
  fake->config_threads = threads; fake->config_blocks = blocks; fake->config_shared = config->shared;
  fake->config_attributes = *cooperative; fake->config_cluster = int(cluster);
  if (*cooperative && fake->launch_ns.count(cluster)) fake->clock_ns += fake->launch_ns[cluster];
  uint64_t state = *static_cast<uint64_t*>(parameters[0]);
  if (*cooperative && !inside(fake->allocations, state, 64)) { violate("the state of a launch is no memory of the device"); return kInvalidValue; }
  *captured = stream ? stream->capture : 0;
  *name = found->name.c_str();
  return kSuccess;
}
Result cuLaunchKernelEx(const Config* config, void* function, void** parameters, void** extra) {
  int captured;
  bool cooperative;
  const char* name;
  if (Result code = check_launch(config, function, parameters, extra, &captured, &cooperative, &name)) return code;
  if (!fake->kernel) return kSuccess;  // called without the lock: it is a Python function
  uint64_t state = *static_cast<uint64_t*>(parameters[0]);
  uint64_t* values = cooperative ? static_cast<uint64_t*>(parameters[1]) : reinterpret_cast<uint64_t*>(parameters);
  return fake->kernel(name, state, values, reinterpret_cast<uint64_t>(config->stream), captured);
}

// ---- memory
Result cuMemAlloc_v2(uint64_t* address, size_t size) {
  UNCAPTURED("cuMemAlloc_v2")
  if (!size) { violate("cuMemAlloc of 0 bytes"); return kInvalidValue; }
  if (fake->used + size > fake->memory) return kOutOfMemory;
  void* memory;
  int descriptor = -1;
  if (size % kIpcPage) {
    memory = aligned_alloc(256, (size + 255) / 256 * 256);
  } else {
    descriptor = memfd_create("fake_gpu", MFD_CLOEXEC);
    if (descriptor < 0 || ftruncate(descriptor, off_t(kIpcHeader + size))) return kOutOfMemory;
    void* mapped = mmap(nullptr, kIpcHeader + size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED) return kOutOfMemory;
    memory = static_cast<char*>(mapped) + kIpcHeader;
  }
  memset(memory, 0xA5, size);
  fake->used += size;
  fake->allocations[*address = reinterpret_cast<uint64_t>(memory)] = size;
  if (descriptor >= 0) fake->descriptors[*address] = descriptor;
  return kSuccess;
}
Result cuMemFree_v2(uint64_t address) {
  UNCAPTURED("cuMemFree_v2")
  auto found = fake->allocations.find(address);
  if (found == fake->allocations.end()) { violate("cuMemFree of memory that is not allocated"); return kInvalidValue; }
  size_t size = found->second;
  fake->used -= size;
  fake->allocations.erase(found);
  auto shared = fake->descriptors.find(address);
  if (shared == fake->descriptors.end()) {
    free(reinterpret_cast<void*>(address));
    return kSuccess;
  }
  if (has_openers(address)) violate("cuMemFree of memory that another process has open");
  close(shared->second);
  fake->descriptors.erase(shared);
  munmap(reinterpret_cast<void*>(address - kIpcHeader), kIpcHeader + size);
  return kSuccess;
}
Result cuIpcGetMemHandle(IpcHandle* handle, uint64_t address) {
  IN_CONTEXT("cuIpcGetMemHandle")
  auto found = fake->descriptors.find(address);
  if (found == fake->descriptors.end()) { violate("cuIpcGetMemHandle of memory that is no allocation of whole pages of 2 MB"); return kInvalidValue; }
  *handle = IpcHandle{{'f', 'a', 'k', 'e', 'i', 'p', 'c', 0}, int(getpid()), found->second, fake->allocations[address], {}};
  return kSuccess;
}
Result cuIpcOpenMemHandle_v2(uint64_t* address, IpcHandle handle, unsigned flags) {
  UNCAPTURED("cuIpcOpenMemHandle_v2")
  if (flags != 1 || memcmp(handle.magic, "fakeipc", 8)) { violate("cuIpcOpenMemHandle with wrong flags or handle"); return kInvalidValue; }
  if (handle.pid == getpid()) { violate("cuIpcOpenMemHandle in the process that made the memory"); return kInvalidContext; }
  std::string path = "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.descriptor);
  int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return kInvalidHandle;
  void* mapped = mmap(nullptr, kIpcHeader + handle.size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  close(descriptor);
  if (mapped == MAP_FAILED) return kInvalidHandle;
  *address = reinterpret_cast<uint64_t>(mapped) + kIpcHeader;
  replace_opener(*address, 0, getpid());
  fake->opened[*address] = handle.size;
  return kSuccess;
}
Result cuIpcCloseMemHandle(uint64_t address) {
  UNCAPTURED("cuIpcCloseMemHandle")
  auto found = fake->opened.find(address);
  if (found == fake->opened.end()) { violate("cuIpcCloseMemHandle of memory that was not opened"); return kInvalidValue; }
  replace_opener(address, getpid(), 0);
  munmap(reinterpret_cast<void*>(address - kIpcHeader), kIpcHeader + found->second);
  fake->opened.erase(found);
  return kSuccess;
}
Result cuMemHostAlloc(void** address, size_t size, unsigned flags) {
  UNCAPTURED("cuMemHostAlloc")
  if (flags != 3) { violate("cuMemHostAlloc without mapping"); return kInvalidValue; }
  *address = calloc(1, size);
  fake->host_allocations[reinterpret_cast<uint64_t>(*address)] = size;
  return kSuccess;
}
Result cuMemFreeHost(void* address) {
  UNCAPTURED("cuMemFreeHost")
  if (!fake->host_allocations.erase(reinterpret_cast<uint64_t>(address))) { violate("cuMemFreeHost of unknown memory"); return kInvalidValue; }
  free(address);
  return kSuccess;
}
Result cuMemHostRegister_v2(void* address, size_t size, unsigned flags) {
  UNCAPTURED("cuMemHostRegister_v2")
  if (flags != 3 || reinterpret_cast<uint64_t>(address) % 4096) { violate("cuMemHostRegister"); return kInvalidValue; }
  fake->host_allocations[reinterpret_cast<uint64_t>(address)] = size;
  return kSuccess;
}
Result cuMemHostGetDevicePointer_v2(uint64_t* device, void* host, unsigned) {
  IN_CONTEXT("cuMemHostGetDevicePointer_v2")
  *device = reinterpret_cast<uint64_t>(host);
  if (!fake->host_allocations.count(*device)) { violate("the device's address of memory that is not mapped"); return kInvalidValue; }
  return kSuccess;
}
Result cuMemcpyHtoDAsync_v2(uint64_t device, const void* host, size_t size, void* stream) {
  IN_CONTEXT("cuMemcpyHtoDAsync_v2")
  if (!stream || !stream_known(stream)) { violate("a copy on the default or an unknown stream"); return kInvalidHandle; }
  if (!on_device(device, size) && !in_global(device, size)) { violate("a copy outside of an allocation"); return kInvalidValue; }
  memcpy(reinterpret_cast<void*>(device), host, size);
  return kSuccess;
}
Result cuMemcpyDtoHAsync_v2(void* host, uint64_t device, size_t size, void* stream) {
  if (fake->kernel) fake->kernel("", device, nullptr, 0, 0);  // the kernel may have ended in the meantime
  IN_CONTEXT("cuMemcpyDtoHAsync_v2")
  if (!stream || !stream_known(stream)) { violate("a copy on the default or an unknown stream"); return kInvalidHandle; }
  if (!on_device(device, size)) { violate("a copy outside of an allocation"); return kInvalidValue; }
  memcpy(host, reinterpret_cast<void*>(device), size);
  return kSuccess;
}
Result cuPointerGetAttribute(void* value, int which, uint64_t address) {
  ENTER("cuPointerGetAttribute")
  if (which != 9) { violate("cuPointerGetAttribute"); return kInvalidValue; }
  if (on_device(address, 1)) { *static_cast<int*>(value) = 0; return kSuccess; }
  return kInvalidValue;
}

// ---- streams and events
Result cuStreamCreate(void** stream, unsigned flags) {
  IN_CONTEXT("cuStreamCreate")
  if (flags != 1) violate("a stream that waits for the default stream");
  auto* made = new Stream{device_of_context()};
  fake->streams[made] = made;
  *stream = made;
  return kSuccess;
}
Result cuStreamDestroy_v2(void* stream) {
  IN_CONTEXT("cuStreamDestroy_v2") if (!fake->streams.erase(stream)) { violate("cuStreamDestroy"); return kInvalidHandle; }
  return kSuccess;
}
static Result check_stream(void* stream, const char* what) {
  if (!stream_known(stream)) { violate(std::string(what) + " of an unknown stream"); return kInvalidHandle; }
  if (stream && find_stream(stream)->capture) { violate(std::string(what) + " of a capturing stream"); return kCaptureUnsupported; }
  return kSuccess;
}
Result cuStreamQuery(void* stream) { IN_CONTEXT("cuStreamQuery") return check_stream(stream, "cuStreamQuery"); }
Result cuStreamSynchronize(void* stream) { IN_CONTEXT("cuStreamSynchronize") return check_stream(stream, "cuStreamSynchronize"); }
Result cuStreamWaitEvent(void* stream, void* event, unsigned) {
  IN_CONTEXT("cuStreamWaitEvent")
  if (!fake->events.count(event) || !stream_known(stream)) { violate("cuStreamWaitEvent"); return kInvalidHandle; }
  return kSuccess;
}
Result cuStreamIsCapturing(void* stream, int* status) {
  IN_CONTEXT("cuStreamIsCapturing")
  if (!stream_known(stream)) { violate("cuStreamIsCapturing of an unknown stream"); return kInvalidHandle; }
  if (!stream && fake->legacy_capture) return kCaptureImplicit;
  *status = stream ? find_stream(stream)->capture : 0;
  return kSuccess;
}
Result cuThreadExchangeStreamCaptureMode(int* mode) { ENTER("cuThreadExchangeStreamCaptureMode") std::swap(*mode, capture_mode); return kSuccess; }
Result cuEventCreate(void** event, unsigned) { IN_CONTEXT("cuEventCreate") *event = malloc(1); fake->events.insert(*event); return kSuccess; }
Result cuEventRecord(void* event, void* stream) {
  IN_CONTEXT("cuEventRecord")
  if (!fake->events.count(event) || !stream_known(stream)) { violate("cuEventRecord"); return kInvalidHandle; }
  fake->recorded[event] = fake->clock_ns;
  return kSuccess;
}
Result cuEventElapsedTime(float* ms, void* begin, void* end) {
  IN_CONTEXT("cuEventElapsedTime")
  if (!fake->recorded.count(begin) || !fake->recorded.count(end)) { violate("cuEventElapsedTime"); return kInvalidHandle; }
  *ms = fake->launch_ns.empty() ? 1.0f : float(fake->recorded[end] - fake->recorded[begin]) / 1e6f;
  return kSuccess;
}
Result cuEventDestroy_v2(void* event) {
  IN_CONTEXT("cuEventDestroy_v2") if (!fake->events.erase(event)) { violate("cuEventDestroy"); return kInvalidHandle; }
  fake->recorded.erase(event);
  return kSuccess;
}
}  // extern "C"
