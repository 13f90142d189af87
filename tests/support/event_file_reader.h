#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"

namespace kintsugi {

// A reader of TensorBoard event files, written from the format's definition and sharing no code
// with the writer. Throws std::runtime_error for what a reader would refuse.

struct EventRead {
  double wall_time_s = 0;
  std::int64_t step = 0;
  std::string file_version = {};
  bool restart = false;
  std::vector<std::pair<std::string, float>> values = {};
};

// One bit at a time, by the definition of the polynomial.
inline std::uint32_t bitwise_crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) {
    crc ^= static_cast<std::uint8_t>(c);
    for (int i = 0; i < 8; ++i) crc = (crc & 1) ? (crc >> 1) ^ 0x82F63B78 : crc >> 1;
  }
  return crc ^ 0xFFFFFFFF;
}

class ProtoReader {
 public:
  explicit ProtoReader(std::string_view bytes) : rest_(bytes) {}
  bool empty() const { return rest_.empty(); }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<std::uint8_t>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    throw std::runtime_error("a varint is too long");
  }
  template <class T>
  T fixed() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view bytes() { return take(varint()); }
  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) throw std::runtime_error("a message ends too early");
    const std::string_view head = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return head;
  }

 private:
  std::string_view rest_;
};

inline EventRead parse_event(std::string_view bytes) {
  EventRead event;
  for (ProtoReader in(bytes); !in.empty();) {
    const std::uint64_t key = in.varint();
    if (key == (1 << 3 | 1)) {
      event.wall_time_s = in.fixed<double>();
    } else if (key == (2 << 3 | 0)) {
      event.step = static_cast<std::int64_t>(in.varint());
    } else if (key == (3 << 3 | 2)) {
      event.file_version = in.bytes();
    } else if (key == (7 << 3 | 2)) {
      event.restart = in.bytes() == std::string_view("\x08\x01");
    } else if (key == (5 << 3 | 2)) {
      for (ProtoReader summary(in.bytes()); !summary.empty();) {
        if (summary.varint() != (1 << 3 | 2)) throw std::runtime_error("unknown in Summary");
        ProtoReader value(summary.bytes());
        if (value.varint() != (1 << 3 | 2)) throw std::runtime_error("a value has no tag");
        std::string tag(value.bytes());
        if (value.varint() != (2 << 3 | 5)) throw std::runtime_error("a value has no number");
        event.values.emplace_back(std::move(tag), value.fixed<float>());
        if (!value.empty()) throw std::runtime_error("a value has more fields");
      }
    } else {
      throw std::runtime_error("unknown field in Event");
    }
  }
  return event;
}

// The events up to the end or to a truncated record; `truncated` says which.
inline std::vector<EventRead> parse_event_file(const std::string& bytes,
                                               bool* truncated = nullptr) {
  std::vector<EventRead> events;
  if (truncated != nullptr) *truncated = true;
  std::size_t at = 0;
  const auto fixed32 = [&](std::size_t where) {
    std::uint32_t value;
    std::memcpy(&value, bytes.data() + where, 4);
    return value;
  };
  const auto masked = [](std::string_view text) {
    const std::uint32_t crc = bitwise_crc32c(text);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
  };
  while (at < bytes.size()) {
    if (bytes.size() - at < 12) return events;
    std::uint64_t length;
    std::memcpy(&length, bytes.data() + at, 8);
    if (masked({bytes.data() + at, 8}) != fixed32(at + 8))
      throw std::runtime_error("wrong checksum of a length");
    if (bytes.size() - at - 12 < length + 4) return events;
    const std::string_view data(bytes.data() + at + 12, length);
    if (masked(data) != fixed32(at + 12 + length)) throw std::runtime_error("wrong checksum");
    events.push_back(parse_event(data));
    at += 16 + length;
  }
  if (truncated != nullptr) *truncated = false;
  return events;
}

inline std::vector<std::filesystem::path> event_files(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::exists(directory))
    for (const auto& entry : std::filesystem::directory_iterator(directory))
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

using EventSeries = std::map<std::string, std::map<std::int64_t, float>>;  // [tag][step]

// What TensorBoard shows of a directory: files in the order of their names; a restart removes the
// points of its step and later ones.
inline EventSeries read_event_series(const std::filesystem::path& directory) {
  EventSeries series;
  for (const std::filesystem::path& file : event_files(directory)) {
    const std::vector<EventRead> events = parse_event_file(read_text_file(file));
    if (events.empty() || events[0].file_version != "brain.Event:2")
      throw std::runtime_error(file.string() + " does not begin with its version");
    for (const EventRead& event : events) {
      if (event.restart)
        for (auto& [tag, points] : series)
          points.erase(points.lower_bound(event.step), points.end());
      for (const auto& [tag, value] : event.values)
        if (!series[tag].emplace(event.step, value).second)
          throw std::runtime_error("two points of one step: " + tag);
    }
  }
  return series;
}

}  // namespace kintsugi
