#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace kintsugi {

// How often each piece came: a hash table. Pieces of up to 16 bytes, nearly all of them, lie in the
// table itself, so that counting one touches one line of memory; longer ones in a block of bytes.
class PieceCounts {
 public:
  PieceCounts();

  void add(std::string_view piece, std::int64_t count = 1) { add(piece, count, hash(piece)); }
  void add(std::string_view piece, std::int64_t count, std::uint64_t hash);
  void clear();  // keeps the memory

  std::size_t size() const { return short_used_ + long_.size(); }  // distinct pieces
  std::size_t long_bytes() const { return text_.size(); }          // of the long ones

  // callback(piece, count, hash) in no order that means anything. The views last until this object
  // changes.
  template <class Callback>
  void for_each(Callback&& callback) const;
  static std::uint64_t hash(std::string_view piece);

 private:
  static constexpr std::size_t kShort = 16;
  struct alignas(32) Short {
    char bytes[kShort] = {};  // zeros behind the end
    std::int64_t count = 0;
    std::uint32_t length = 0;  // 0: free
  };
  struct Long {
    std::uint64_t hash;
    std::size_t begin, length;
    std::int64_t count;
  };
  std::string_view piece(const Long& entry) const {
    return {text_.data() + entry.begin, entry.length};
  }
  void add_short(std::string_view piece, std::int64_t count, std::uint64_t hash);
  void add_long(std::string_view piece, std::int64_t count, std::uint64_t hash);
  void grow_short();
  void grow_long();

  std::vector<Short> short_;  // a power of two, at most half full, like long_index_
  std::size_t short_used_ = 0;
  std::vector<std::uint32_t> long_index_;  // number of the entry, from 1; 0: free
  std::vector<Long> long_;
  std::vector<char> text_;
};

template <class Callback>
void PieceCounts::for_each(Callback&& callback) const {
  for (const Short& entry : short_) {
    if (entry.length == 0) continue;
    const std::string_view piece(entry.bytes, entry.length);
    callback(piece, entry.count, hash(piece));
  }
  for (const Long& entry : long_) callback(piece(entry), entry.count, entry.hash);
}

}  // namespace kintsugi
