#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/sampling/sample_order.h"
#include "support/temporary_directory.h"
#include "support/token_files.h"

namespace kintsugi {

// Writes a token store with these documents (u16) and, if given, a .mask file. Returns its prefix.
inline std::string write_store(const TemporaryDirectory& directory, const std::string& name,
                               const std::vector<std::vector<std::int32_t>>& documents,
                               const std::string& mask = "") {
  const std::string prefix = (directory / name).string();
  write_megatron(prefix, TokenType::U16, documents);
  if (!mask.empty()) directory.write(name + ".mask", mask);
  return prefix;
}

// Documents of these lengths in which token i is first + i, so that a token tells its position.
inline std::vector<std::vector<std::int32_t>> counting_documents(
    const std::vector<std::int32_t>& lengths, std::int32_t first = 0) {
  std::vector<std::vector<std::int32_t>> documents;
  for (const std::int32_t length : lengths) {
    auto& document = documents.emplace_back();
    for (std::int32_t i = 0; i < length; ++i) document.push_back(first++);
  }
  return documents;
}

inline TokenShard counting_shard(const TemporaryDirectory& directory, const std::string& name,
                                 const std::vector<std::int32_t>& lengths, std::int32_t first = 0) {
  return TokenShard::open(write_store(directory, name, counting_documents(lengths, first)));
}

inline std::vector<TokenShard> one_shard(TokenShard shard) {
  std::vector<TokenShard> shards;
  shards.push_back(std::move(shard));
  return shards;
}

inline std::vector<std::int32_t> tokens_of(const std::vector<TokenRange>& pieces) {
  std::vector<std::int32_t> tokens;
  for (const TokenRange& piece : pieces) {
    std::vector<std::int32_t> read(static_cast<std::size_t>(piece.count));
    piece.shard->read(piece.first, read);
    tokens.insert(tokens.end(), read.begin(), read.end());
  }
  return tokens;
}

// Windows over each of these streams, which must outlive them.
inline std::vector<std::unique_ptr<SourceSamples>> windows_over(
    const std::vector<const TokenStream*>& streams, std::int64_t length) {
  std::vector<std::unique_ptr<SourceSamples>> sources;
  for (const TokenStream* stream : streams)
    sources.push_back(std::make_unique<WindowSamples>(*stream, length));
  return sources;
}

}  // namespace kintsugi
