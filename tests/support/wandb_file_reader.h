#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "support/event_file_reader.h"

namespace kintsugi {

// A reader of W&B's run-ID.wandb, written from the layout of the file and sharing no code with the
// writer. Throws std::runtime_error for what a reader would refuse.

struct WandbRead {
  std::string run_id = {}, project = {}, name = {};
  double start_s = 0;
  std::map<std::string, std::string> config = {}, summary = {};  // values as JSON
  struct Step {
    std::int64_t step = 0;
    std::map<std::string, std::string> items = {};
  };
  std::vector<Step> history = {};
  std::vector<int> exits = {};
  int frames = 0, split = 0;  // records, and those in several blocks
};

// CRC-32 of zlib, one bit at a time.
inline std::uint32_t bitwise_crc32(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) {
    crc ^= static_cast<std::uint8_t>(c);
    for (int i = 0; i < 8; ++i) crc = (crc & 1) ? (crc >> 1) ^ 0xEDB88320 : crc >> 1;
  }
  return crc ^ 0xFFFFFFFF;
}

// The records of the log, put together from their frames.
inline std::vector<std::string> wandb_records(const std::string& bytes, int* split = nullptr) {
  constexpr std::size_t kBlock = 32768;
  if (bytes.substr(0, 7) != std::string(":W&B\xe1\xbe\0", 7))
    throw std::runtime_error("no W&B file of version 0");
  std::vector<std::string> records;
  bool inside = false;
  for (std::size_t at = 7; at < bytes.size();) {
    const std::size_t left = kBlock - at % kBlock;
    if (left < 7) {
      for (const char c : bytes.substr(at, left))
        if (c != 0) throw std::runtime_error("padding that is not zero");
      at += left;
      continue;
    }
    if (bytes.size() - at < 7) throw std::runtime_error("a header ends too early");
    std::uint32_t crc;
    std::uint16_t length;
    std::memcpy(&crc, bytes.data() + at, 4);
    std::memcpy(&length, bytes.data() + at + 4, 2);
    const int type = bytes[at + 6];
    if (length + 7u > left) throw std::runtime_error("a frame leaves its block");
    if (bytes.size() - at - 7 < length) throw std::runtime_error("a frame ends too early");
    if (bitwise_crc32({bytes.data() + at + 6, length + 1u}) != crc)
      throw std::runtime_error("wrong checksum");
    const bool first = type == 1 || type == 2, last = type == 1 || type == 4;
    if (type < 1 || type > 4 || first == inside) throw std::runtime_error("wrong frame type");
    if (first) records.emplace_back();
    if (split != nullptr && type == 2) ++*split;
    records.back().append(bytes, at + 7, length);
    inside = !last;
    at += 7u + length;
  }
  if (inside) throw std::runtime_error("the last record is not complete");
  return records;
}

inline std::pair<std::string, std::string> wandb_item(std::string_view bytes) {
  std::pair<std::string, std::string> item;
  for (ProtoReader in(bytes); !in.empty();) {
    const std::uint64_t key = in.varint();
    if (key != (1 << 3 | 2) && key != (16 << 3 | 2)) throw std::runtime_error("unknown in an item");
    (key == (1 << 3 | 2) ? item.first : item.second) = in.bytes();
  }
  return item;
}

inline WandbRead read_wandb(const std::string& bytes) {
  WandbRead read;
  std::int64_t number = 0;
  for (const std::string& record : wandb_records(bytes, &read.split)) {
    ProtoReader in(record);
    if (in.varint() != (1 << 3 | 0) || static_cast<std::int64_t>(in.varint()) != ++number)
      throw std::runtime_error("records are not numbered");
    const std::uint64_t key = in.varint();
    if ((key & 7) != 2) throw std::runtime_error("a record is no message");
    ProtoReader message(in.bytes());
    if (!in.empty()) throw std::runtime_error("a record has more fields");
    const std::uint64_t kind = key >> 3;
    if ((number == 1) != (kind == 21)) throw std::runtime_error("the header is not the first");
    if ((number == 2) != (kind == 17)) throw std::runtime_error("the run is not the second");
    if (kind == 2) read.history.emplace_back();
    while (!message.empty()) {
      const std::uint64_t field = message.varint();
      if (kind == 17) {
        const std::string text(message.bytes());
        if (field == (1 << 3 | 2)) read.run_id = text;
        if (field == (3 << 3 | 2)) read.project = text;
        if (field == (8 << 3 | 2)) read.name = text;
        ProtoReader inner(text);
        if (field == (4 << 3 | 2))
          while (!inner.empty() && inner.varint() == (1 << 3 | 2))
            read.config.insert(wandb_item(inner.bytes()));
        if (field == (17 << 3 | 2)) {
          inner.varint();
          read.start_s = static_cast<double>(inner.varint());
          inner.varint();
          read.start_s += 1e-9 * static_cast<double>(inner.varint());
        }
      } else if (kind == 2 && field == (1 << 3 | 2)) {
        read.history.back().items.insert(wandb_item(message.bytes()));
      } else if (kind == 2 && field == (2 << 3 | 2)) {
        ProtoReader step(message.bytes());
        step.varint();
        read.history.back().step = static_cast<std::int64_t>(step.varint());
      } else if (kind == 3 && field == (1 << 3 | 2)) {
        const auto [name, value] = wandb_item(message.bytes());
        read.summary[name] = value;
      } else if (kind == 18 && (field & 7) == 0) {
        const int value = static_cast<int>(message.varint());
        if (field >> 3 == 1) read.exits.push_back(value);
      } else {
        throw std::runtime_error("unknown field");
      }
    }
    ++read.frames;
  }
  return read;
}

}  // namespace kintsugi
