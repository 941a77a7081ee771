/* A backend of LibTorch for the tests: an accelerator that is simulated with threads and mappings.
 *
 * Its memory has two mappings. The address that LibTorch sees cannot be read or written (PROT_NONE), so that an access
 * by the CPU is a crash of the test. The copies of the device use the second mapping. Each device has streams, which
 * are threads with a queue, and copies at a bandwidth that can be set. Host memory can be pinned (LibTorch 2.6 and
 * newer); copies of other host memory wait, as they do on CUDA. Operators run on the CPU, with copies of their
 * arguments.
 *
 * simulated::set and simulated::get change and return the numbers of `Settings`. */
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#if XT_TORCH_VERSION >= 206
#include <ATen/detail/PrivateUse1HooksInterface.h>
#endif
#if XT_TORCH_VERSION >= 210
#include <c10/core/CachingDeviceAllocator.h>
#endif

namespace {

#if XT_TORCH_VERSION >= 206
template <class T> using optional = std::optional<T>;
#else
template <class T> using optional = c10::optional<T>;
#endif

constexpr int device_count = 2, stream_count = 3;
using Clock = std::chrono::steady_clock;

/* ---- Settings and figures ---- */

struct Settings {
  std::atomic<int64_t> bandwidth{0};      /* of a stream, in bytes per second; 0 is unlimited */
  std::atomic<int64_t> capacity{1 << 30}; /* of a device, in bytes */
  std::atomic<int64_t> fail_after{-1};    /* copies until one fails; -1 for never */
  std::atomic<int64_t> cache{0}; /* 1: freed memory is kept, as real backends do; its next use touches no page */
  std::atomic<int64_t> allocated[device_count]{};
  std::atomic<int64_t> pinned{0};                 /* bytes of pinned host memory */
  std::atomic<int64_t> most_pinned{0};            /* the most since it was set */
  std::atomic<int64_t> async{0}, waited{0};       /* copies to or from the host */
  std::atomic<int64_t> frees{0}, normal_frees{0}; /* of device memory; on a normal scheduler */
  std::atomic<int64_t> wrong_frees{0};            /* on another device than that of the memory */
  std::atomic<int64_t> waits{0}, normal_waits{0}; /* of threads for a stream or event; of normal schedulers */
} settings;

std::atomic<int64_t> *setting(const std::string &key) {
  static const std::map<std::string, std::atomic<int64_t> *> known = {{"bandwidth", &settings.bandwidth},
                                                                      {"capacity", &settings.capacity},
                                                                      {"cache", &settings.cache},
                                                                      {"fail_after", &settings.fail_after},
                                                                      {"allocated:0", &settings.allocated[0]},
                                                                      {"allocated:1", &settings.allocated[1]},
                                                                      {"pinned", &settings.pinned},
                                                                      {"most_pinned", &settings.most_pinned},
                                                                      {"async", &settings.async},
                                                                      {"waited", &settings.waited},
                                                                      {"frees", &settings.frees},
                                                                      {"normal_frees", &settings.normal_frees},
                                                                      {"wrong_frees", &settings.wrong_frees},
                                                                      {"waits", &settings.waits},
                                                                      {"normal_waits", &settings.normal_waits}};
  auto found = known.find(key);
  TORCH_CHECK(found != known.end(), "no setting ", key);
  return found->second;
}

/* OTP 25 names its normal schedulers "1_scheduler", OTP 26 and newer "erts_sched_1". */
bool on_normal_scheduler() {
  char name[32] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  return strstr(name, "_scheduler") || strstr(name, "erts_sched_");
}

void count_wait() {
  settings.waits++;
  if (on_normal_scheduler()) settings.normal_waits++;
}

/* ---- Memory ---- */

struct Block {
  char *visible, *shadow;
  size_t size;
  int device;
};

std::mutex memory_mutex;
std::vector<Block> &cached_blocks() { /* never destroyed */
  static auto *all = new std::vector<Block>();
  return *all;
}
std::map<char *, Block> &blocks() { /* by the visible address; never destroyed */
  static auto *all = new std::map<char *, Block>();
  return *all;
}

thread_local int current_device = 0;

/* Returns the address that the device uses, or NULL for host memory. */
char *shadow_of(const void *address) {
  auto *at = static_cast<char *>(const_cast<void *>(address));
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto found = blocks().upper_bound(at);
  if (found == blocks().begin()) return nullptr;
  const Block &block = (--found)->second;
  return at < block.visible + block.size ? block.shadow + (at - block.visible) : nullptr;
}

void free_block(void *visible) {
  Block block;
  {
    std::lock_guard<std::mutex> lock(memory_mutex);
    auto found = blocks().find(static_cast<char *>(visible));
    TORCH_CHECK(found != blocks().end(), "memory of the device is freed twice");
    block = found->second;
    blocks().erase(found);
  }
  settings.allocated[block.device] -= static_cast<int64_t>(block.size);
  settings.frees++;
  if (on_normal_scheduler()) settings.normal_frees++;
  if (settings.cache) {
    std::lock_guard<std::mutex> lock(memory_mutex);
    cached_blocks().push_back(block);
    return;
  }
  munmap(block.visible, block.size);
  munmap(block.shadow, block.size);
}

#if XT_TORCH_VERSION >= 210
using DeviceAllocatorBase = c10::DeviceAllocator;
#else
using DeviceAllocatorBase = c10::Allocator;
#endif

struct DeviceAllocator final : DeviceAllocatorBase {
#if XT_TORCH_VERSION >= 200
  at::DataPtr allocate(size_t size) override { return take(size); }
  void copy_data(void *to, const void *from, size_t size) const override {
    memcpy(shadow_of(to), shadow_of(from), size);
  }
#else
  at::DataPtr allocate(size_t size) const override { return take(size); }
#endif
  at::DeleterFnPtr raw_deleter() const override { return free_block; }

#if XT_TORCH_VERSION >= 210
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {}
  void recordStream(const c10::DataPtr &, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return {static_cast<size_t>(settings.capacity - settings.allocated[device]),
            static_cast<size_t>(settings.capacity)};
  }
#endif

  static at::DataPtr take(size_t size) {
    int device = current_device;
    at::Device place(at::kPrivateUse1, static_cast<c10::DeviceIndex>(device));
    if (!size) return {nullptr, nullptr, &free_nothing, place};
    auto bytes = static_cast<int64_t>(size);
    if (settings.allocated[device].fetch_add(bytes) + bytes > settings.capacity) {
      settings.allocated[device] -= bytes;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "the simulated device ", device, " is out of memory: ", size,
                       " bytes were requested");
    }
    std::lock_guard<std::mutex> lock(memory_mutex);
    auto &cached = cached_blocks();
    for (size_t i = 0; i < cached.size(); i++)
      if (cached[i].size == size && cached[i].device == device) {
        Block block = cached[i];
        cached[i] = cached.back();
        cached.pop_back();
        blocks()[block.visible] = block;
        return {block.visible, block.visible, free_block, place};
      }
    void *visible = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(visible != MAP_FAILED, "mmap failed");
    void *shadow = mremap(visible, 0, size, MREMAP_MAYMOVE); /* a second mapping of the same pages */
    TORCH_CHECK(shadow != MAP_FAILED && !mprotect(visible, size, PROT_NONE), "mremap failed");
    blocks()[static_cast<char *>(visible)] = {static_cast<char *>(visible), static_cast<char *>(shadow), size, device};
    return {visible, visible, free_block, place};
  }
  static void free_nothing(void *) {}
};

DeviceAllocator allocator;

/* ---- Pinned host memory ---- */

std::map<char *, size_t> &pinned_blocks() {
  static auto *all = new std::map<char *, size_t>();
  return *all;
}

bool is_pinned(const void *address) {
  auto *at = static_cast<char *>(const_cast<void *>(address));
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto found = pinned_blocks().upper_bound(at);
  if (found == pinned_blocks().begin()) return false;
  --found;
  return at < found->first + found->second;
}

[[maybe_unused]] void free_pinned(void *address) {
  if (!address) return;
  {
    std::lock_guard<std::mutex> lock(memory_mutex);
    auto found = pinned_blocks().find(static_cast<char *>(address));
    settings.pinned -= static_cast<int64_t>(found->second);
    pinned_blocks().erase(found);
  }
  free(address);
}

#if XT_TORCH_VERSION >= 206
struct PinnedAllocator final : c10::Allocator {
  at::DataPtr allocate(size_t size) override {
    void *address = nullptr;
    TORCH_CHECK(!posix_memalign(&address, 4096, size), "out of memory");
    int64_t now = settings.pinned += static_cast<int64_t>(size);
    if (now > settings.most_pinned) settings.most_pinned = now;
    std::lock_guard<std::mutex> lock(memory_mutex);
    pinned_blocks()[static_cast<char *>(address)] = size;
    return {address, address, free_pinned, at::Device(at::kCPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return free_pinned; }
  void copy_data(void *to, const void *from, size_t size) const override { memcpy(to, from, size); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  at::Allocator *getPinnedMemoryAllocator() const override {
    static PinnedAllocator pinned;
    return &pinned;
  }
  bool isPinnedPtr(const void *address) const override { return is_pinned(address); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};
#endif

/* ---- Streams and events ---- */

class Worker {
public:
  Worker() : thread([this] { run(); }) { thread.detach(); }

  void add(std::function<void()> job) {
    std::lock_guard<std::mutex> lock(mutex);
    queue.push_back(std::move(job));
    added++;
    changed.notify_all();
  }

  bool idle() {
    std::lock_guard<std::mutex> lock(mutex);
    return finished == added;
  }

  /* Waits for what was added before. */
  void wait() {
    std::unique_lock<std::mutex> lock(mutex);
    uint64_t until = added;
    changed.wait(lock, [&] { return finished >= until; });
  }

  std::atomic<bool> failed{false};
  Clock::time_point busy_until; /* of its own thread */

private:
  void run() {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return !queue.empty(); });
        job = std::move(queue.front());
        queue.pop_front();
      }
      job();
      job = nullptr;
      std::lock_guard<std::mutex> lock(mutex);
      finished++;
      changed.notify_all();
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  uint64_t added = 0, finished = 0;
  std::thread thread;
};

/* Never destroyed: their threads run until the process ends. */
Worker &worker(int device, int64_t stream) {
  static auto *all = new Worker[device_count * stream_count];
  return all[device * stream_count + stream];
}

thread_local int64_t current_stream[device_count];

void check_failed(Worker &stream) {
  if (stream.failed.exchange(false)) TORCH_CHECK(false, "a copy of the simulated device failed");
}

struct Event {
  std::atomic<bool> done{true};
  Worker *stream = nullptr;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  at::DeviceType type() const override { return at::kPrivateUse1; }
  at::Device place(int index) const { return at::Device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(index)); }
  at::Device exchangeDevice(at::Device device) const override {
    at::Device old = getDevice();
    setDevice(device);
    return old;
  }
  at::Device getDevice() const override { return place(current_device); }
  void setDevice(at::Device device) const override {
    TORCH_CHECK(device.index() >= 0 && device.index() < device_count, "no such device: ", device);
    current_device = device.index();
  }
  void uncheckedSetDevice(at::Device device) const noexcept override { current_device = device.index(); }
  c10::Stream stream_at(at::Device device, int64_t id) const { return c10::Stream(c10::Stream::UNSAFE, device, id); }
  c10::Stream getStream(at::Device device) const noexcept override {
    int index = device.has_index() ? device.index() : current_device;
    return stream_at(place(index), current_stream[index]);
  }
  c10::Stream getDefaultStream(at::Device device) const override { return stream_at(device, 0); }
  c10::Stream getStreamFromGlobalPool(at::Device device, bool) const override { return stream_at(device, 1); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    auto old = getStream(stream.device());
    current_stream[stream.device_index()] = stream.id();
    return old;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count; }

  void record(void **slot, const c10::Stream &stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*slot) *slot = new std::shared_ptr<Event>();
    auto event = std::make_shared<Event>();
    event->done = false;
    event->stream = &worker(stream.device_index(), stream.id());
    *static_cast<std::shared_ptr<Event> *>(*slot) = event;
    event->stream->add([event] { event->done = true; });
  }
  void destroyEvent(void *slot, const c10::DeviceIndex) const noexcept override {
    delete static_cast<std::shared_ptr<Event> *>(slot);
  }
  void block(void *slot, const c10::Stream &stream) const override {
    auto event = *static_cast<std::shared_ptr<Event> *>(slot);
    worker(stream.device_index(), stream.id()).add([event] {
      while (!event->done) std::this_thread::yield();
    });
  }
  bool queryEvent(void *slot) const override {
    auto event = *static_cast<std::shared_ptr<Event> *>(slot);
    if (event->done) check_failed(*event->stream);
    return event->done;
  }
  bool queryStream(const c10::Stream &stream) const override {
    return worker(stream.device_index(), stream.id()).idle();
  }
  void synchronizeStream(const c10::Stream &stream) const override {
    count_wait();
    Worker &queue = worker(stream.device_index(), stream.id());
    queue.wait();
    check_failed(queue);
  }
#if XT_TORCH_VERSION >= 206
  void synchronizeEvent(void *slot) const override {
    count_wait();
    auto event = *static_cast<std::shared_ptr<Event> *>(slot);
    while (!event->done) std::this_thread::yield();
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    count_wait();
    for (int64_t id = 0; id < stream_count; id++) worker(device, id).wait();
  }
#endif
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

/* ---- Copies ---- */

bool is_device(const at::Tensor &tensor) { return tensor.device().type() == at::kPrivateUse1; }

/* A copy begins when it was added or when the one before it ended, as on a device: this thread may wake up late. */
void transfer(char *to, const char *from, size_t size, Clock::time_point added, Worker &stream) {
  int64_t left = settings.fail_after;
  if (left >= 0 && settings.fail_after.compare_exchange_strong(left, left - 1) && left == 0) {
    stream.failed = true;
    return;
  }
  memcpy(to, from, size);
  int64_t bandwidth = settings.bandwidth;
  if (!bandwidth) return;
  auto begin = std::max(added, stream.busy_until);
  stream.busy_until =
      begin +
      std::chrono::nanoseconds(static_cast<int64_t>(1e9 * static_cast<double>(size) / static_cast<double>(bandwidth)));
  std::this_thread::sleep_until(stream.busy_until);
}

/* Copies contiguous elements of the same dtype. Both tensors must stay valid until it is done. */
void copy_raw(const at::Tensor &from, const at::Tensor &to, bool non_blocking) {
  const at::Tensor &there = is_device(to) ? to : from;
  const at::Tensor &host = is_device(to) ? from : to;
  if (!to.nbytes()) return;
  Worker &stream = worker(there.device().index(), current_stream[there.device().index()]);
  char *shadow_to = shadow_of(to.data_ptr()), *shadow_from = shadow_of(from.data_ptr());
  auto *target = shadow_to ? shadow_to : static_cast<char *>(to.data_ptr());
  auto *source = shadow_from ? shadow_from : static_cast<char *>(from.data_ptr());
  TORCH_CHECK((shadow_to != nullptr) == is_device(to) && (shadow_from != nullptr) == is_device(from),
              "an address is not on the device of its tensor");
  size_t size = to.nbytes();
  auto now = Clock::now();
  stream.add([=, &stream] { transfer(target, source, size, now, stream); });
  if (non_blocking && (is_device(host) || is_pinned(host.data_ptr()))) {
    settings.async++;
    return;
  }
  settings.waited++;
  count_wait();
  stream.wait();
  check_failed(stream);
}

/* The bytes from the first to the last element, as a tensor of bytes. */
at::Tensor span_of(const at::Tensor &tensor) {
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); d++) last += (tensor.size(d) - 1) * tensor.stride(d);
  return at::native::as_strided_tensorimpl(tensor, {last + 1}, {1}, tensor.storage_offset());
}

/* Returns the values of a tensor of the device on the CPU, with the same strides. */
at::Tensor download(const at::Tensor &tensor) {
  if (!tensor.numel()) return at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  at::Tensor span = span_of(tensor), host = at::empty(span.sizes(), span.options().device(at::kCPU));
  copy_raw(span, host, false);
  return host.as_strided(tensor.sizes(), tensor.strides(), 0);
}

at::Tensor copy_from(const at::Tensor &from, const at::Tensor &to, bool non_blocking) {
  bool same = from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes() && from.is_contiguous() &&
              to.is_contiguous() && from.is_conj() == to.is_conj() && from.is_neg() == to.is_neg();
  bool same_device = !is_device(from) || !is_device(to) || from.device() == to.device();
  if (same && same_device) {
    copy_raw(from, to, non_blocking);
    return to;
  }
  at::Tensor values = is_device(from) ? download(from) : from;
  if (!is_device(to)) return to.copy_(values);
  if (!to.numel()) return to;
  if (to.is_contiguous() && !to.is_conj() && !to.is_neg()) {
    copy_raw(values.to(to.scalar_type()).expand(to.sizes()).contiguous(), to, false);
    return to;
  }
  at::Tensor host = download(to);
  host.copy_(values);
  at::Tensor span = span_of(to);
  copy_raw(host.as_strided(span.sizes(), {1}, 0), span, false);
  return to;
}

/* For results that an operator resizes. */
at::Tensor copy_from_and_resize(const at::Tensor &from, const at::Tensor &to) {
  if (from.sizes() != to.sizes()) {
    auto *storage = to.storage().unsafeGetStorageImpl();
    if (storage->nbytes() < from.nbytes()) {
      TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
      storage->set_data_ptr(DeviceAllocator::take(from.nbytes()));
      storage->set_nbytes(from.nbytes());
    }
    to.unsafeGetTensorImpl()->set_sizes_contiguous(from.sizes());
  }
  return copy_from(from, to, false);
}

/* ---- Tensors ---- */

constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);

struct OnDevice {
  explicit OnDevice(optional<at::Device> device) : old(current_device) {
    if (device && device->has_index()) current_device = device->index();
  }
  ~OnDevice() { current_device = old; }
  int old;
};

at::Tensor empty(c10::IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout>,
                 optional<at::Device> device, optional<bool>, optional<at::MemoryFormat> format) {
  OnDevice here(device);
  return at::detail::empty_generic(size, &allocator, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, optional<at::ScalarType> dtype,
                         optional<at::Layout>, optional<at::Device> device, optional<bool>) {
  OnDevice here(device);
  return at::detail::empty_strided_generic(size, stride, &allocator, keys, c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor &self, c10::IntArrayRef size, c10::IntArrayRef stride,
                      optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor view(const at::Tensor &self, c10::IntArrayRef size) { return at::native::view(self, size); }

at::Tensor reshape_alias(const at::Tensor &self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

void fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack) { at::native::cpu_fallback(op, stack); }

void set(const std::string &key, int64_t value) { setting(key)->store(value); }
int64_t get(const std::string &key) { return setting(key)->load(); }

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY(simulated, m) {
  m.def("set(str key, int value) -> ()", set);
  m.def("get(str key) -> int", get);
}

namespace {

[[maybe_unused]] const bool registered = [] {
  c10::SetAllocator(at::kPrivateUse1, &allocator);
#if XT_TORCH_VERSION >= 206
  c10::register_privateuse1_backend("simulated");
  at::RegisterPrivateUse1HooksInterface(new Hooks());
#endif
  return true;
}();

} // namespace
