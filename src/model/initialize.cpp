#include "model/initialize.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <thread>
#include <vector>

#include "core/hash.h"
#include "core/philox.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kChunk = std::int64_t{1} << 22;  // elements handled at a time

// Element i of a parameter's standard normal values: Box-Muller on two words of Philox draw i / 2.
double standard_normal(std::uint64_t key, std::int64_t i) {
  const Philox::Block words = Philox::draw(key, static_cast<std::uint64_t>(i) / 2);
  const double u1 = (static_cast<double>(words[0]) + 1.0) * 0x1.0p-32,
               u2 = static_cast<double>(words[1]) * 0x1.0p-32;
  const double radius = std::sqrt(-2.0 * std::log(u1)), angle = 2.0 * std::numbers::pi * u2;
  return radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

// Likewise uniform in [-1, 1).
double uniform(std::uint64_t key, std::int64_t i) {
  const Philox::Block words = Philox::draw(key, static_cast<std::uint64_t>(i) / 2);
  return static_cast<double>(words[static_cast<std::size_t>(i % 2)]) * 0x1.0p-31 - 1.0;
}

template <class F>
void on_all_cores(std::int64_t n, const F& f) {
  const std::int64_t pieces =
      std::clamp<std::int64_t>(n / 65536, 1, std::max(1u, std::thread::hardware_concurrency()));
  if (pieces == 1) return f(0, n);
  std::vector<std::thread> threads;
  for (std::int64_t p = 0; p < pieces; ++p)
    threads.emplace_back([&f, n, p, pieces] { f(n * p / pieces, n * (p + 1) / pieces); });
  for (std::thread& thread : threads) thread.join();
}

void upload_rounded(Backend& backend, const Tensor& to, std::span<const double> values,
                    std::vector<std::byte>& buffer) {
  buffer.resize(to.bytes());
  visit_float(to.dtype(), [&]<class T>() {
    T* out = reinterpret_cast<T*>(buffer.data());
    for (std::size_t i = 0; i < values.size(); ++i)
      out[i] = static_cast<T>(static_cast<Accumulator<T>>(values[i]));
  });
  backend.upload(to, buffer.data());
}

// The name in the file: as it is, or with GPT-2's and BLOOM's prefix left out as files on the hub
// do.
SafetensorsModel::Location locate(const SafetensorsModel& source, const std::string& name) {
  if (const auto found = source.find(name)) return found;
  constexpr std::string_view prefix = "transformer.";
  if (name.starts_with(prefix)) return source.find(name.substr(prefix.size()));
  return {};
}

void check_tensor(const SafetensorsModel::Location& found, const Parameter& parameter,
                  const std::string& prefix, const std::string& where) {
  if (!found)
    user_error(
        "{} has no tensor {}{}: it is not a model of this configuration, or a part of it is "
        "missing",
        where, prefix, parameter.name);
  bool same = found.entry->shape.size() == static_cast<std::size_t>(parameter.global.rank());
  for (int i = 0; same && i < parameter.global.rank(); ++i)
    same = found.entry->shape[static_cast<std::size_t>(i)] == parameter.global[i];
  if (!same)
    user_error("{} in {} has shape [{}], the configuration needs {}", parameter.name,
               found.file->path().string(), fmt::join(found.entry->shape, ", "),
               to_string(parameter.global));
  const auto dtype = found.entry->dtype;
  if (!dtype || *dtype == DType::I64 || *dtype == DType::I32 || *dtype == DType::U8)
    user_error("{} in {} is stored as {}: only F64, F32, BF16 and F16 weights can be read",
               parameter.name, found.file->path().string(), found.entry->dtype_name);
}

}  // namespace

void FreshParameters::read(const Parameter& parameter, std::int64_t first,
                           std::span<double> values) const {
  const Init& init = parameter.init;
  std::fill(values.begin(), values.end(), init.kind == InitKind::Ones ? 1.0 : 0.0);
  if (init.kind == InitKind::Ones || init.kind == InitKind::Zeros) return;
  const std::uint64_t key = derive_key(seed_, hash64(parameter.name));
  on_all_cores(static_cast<std::int64_t>(values.size()), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      values[static_cast<std::size_t>(i)] =
          init.scale * (init.kind == InitKind::Normal ? standard_normal(key, first + i)
                                                      : uniform(key, first + i));
  });
}

StoredParameters::StoredParameters(const SafetensorsModel& files, const ParameterSet& set,
                                   std::string prefix,
                                   const std::function<bool(const Parameter&)>& has)
    : files_(&files), prefix_(std::move(prefix)) {
  const std::string where = files.files().front().path().parent_path().string();
  for (const Parameter& parameter : set.parameters())  // before anything is written
    if (!has || has(parameter))
      check_tensor(locate(files, prefix_ + parameter.name), parameter, prefix_, where);
}

void StoredParameters::read(const Parameter& parameter, std::int64_t first,
                            std::span<double> values) const {
  const auto found = locate(*files_, prefix_ + parameter.name);
  const std::span<const std::byte> bytes = found.bytes();
  visit_float(*found.entry->dtype, [&]<class T>() {
    for (std::size_t i = 0; i < values.size(); ++i) {
      T value;  // the file promises no alignment
      std::memcpy(&value, bytes.data() + (static_cast<std::size_t>(first) + i) * sizeof(T),
                  sizeof(T));
      values[i] = static_cast<double>(static_cast<Accumulator<T>>(value));
    }
  });
  found.file->check_intact();
}

void fill_from(const ParameterSource& source, Backend& backend, Tensor destination,
               const ParameterSet& set, std::int64_t begin, std::int64_t end) {
  KINTSUGI_CHECK(destination.elements() == end - begin, "{} elements for [{}, {})",
                 destination.elements(), begin, end);
  backend.fill(destination, 0.0);
  std::vector<double> values;
  std::vector<std::byte> buffer;
  for (const Parameter& parameter : set.parameters()) {
    const std::int64_t stop = std::min(end, parameter.offset + parameter.shape.elements());
    for (std::int64_t at = std::max(begin, parameter.offset); at < stop; at += kChunk) {
      const std::int64_t first = at - parameter.offset, count = std::min(kChunk, stop - at);
      values.assign(static_cast<std::size_t>(count), 0.0);
      for_each_run(parameter.cut, parameter.global, set.tp_rank(), first, first + count,
                   [&](const CutRun& run) {
                     source.read(
                         parameter, run.there,
                         std::span(values).subspan(static_cast<std::size_t>(run.here - first),
                                                   static_cast<std::size_t>(run.count)));
                   });
      upload_rounded(backend, destination.rows(at - begin, count), values, buffer);
    }
  }
}

void initialize_parameters(Backend& backend, const ParameterStore& store, std::uint64_t seed) {
  fill_from(FreshParameters(seed), backend, store.weights(), store.set(), 0,
            store.set().buffer_elements());
}

void load_parameters(Backend& backend, const ParameterStore& store,
                     const SafetensorsModel& source) {
  fill_from(StoredParameters(source, store.set()), backend, store.weights(), store.set(), 0,
            store.set().buffer_elements());
}

}  // namespace kintsugi
