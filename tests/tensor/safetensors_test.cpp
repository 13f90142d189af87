#include "tensor/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "core/error.h"
#include "support/paths.h"

namespace kintsugi {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// Returns a file with the given header and data, and the header length before them.
std::string file_of(const std::string& header, const std::string& data = "") {
  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "some.safetensors");
}

std::string error_of(const std::string& file) {
  try {
    parse(file);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

// A file written by hand: w F32 [2,1] = 1, -2 and b BF16 [2] = 1, -2.
std::string golden() {
  return std::string("\x90\0\0\0\0\0\0\0", 8) +
         R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
         R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]}}  )" +
         std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0\x80\x3f\x00\xc0", 12);
}

class SafetensorsFiles : public ::testing::Test {
 protected:
  SafetensorsFiles() {
    std::string pattern = std::filesystem::temp_directory_path() / "safetensors-XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
  }
  ~SafetensorsFiles() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path put(const std::string& name, const std::string& content) {
    write_file_atomically(directory_ / name, content);
    return directory_ / name;
  }
  std::string model_error(const std::filesystem::path& path) {
    try {
      SafetensorsModel model(path);
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path directory_;
};

TEST_F(SafetensorsFiles, ReadsGoldenBytes) {
  ASSERT_EQ(golden().size(), 164u);
  const SafetensorsFile file(put("golden.safetensors", golden()));
  ASSERT_EQ(file.entries().size(), 2u);
  EXPECT_THAT(file.metadata(), UnorderedElementsAre(std::pair("format", "pt")));

  const SafetensorsEntry* w = file.find("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->dtype_name, "F32");
  EXPECT_EQ(w->dtype, DType::F32);
  EXPECT_THAT(w->shape, ElementsAre(2, 1));
  float values[2];
  ASSERT_EQ(file.bytes(*w).size(), sizeof values);
  std::memcpy(values, file.bytes(*w).data(), sizeof values);
  EXPECT_THAT(values, ElementsAre(1.0f, -2.0f));

  const SafetensorsEntry* b = file.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, DType::BF16);
  EXPECT_THAT(b->shape, ElementsAre(2));
  bf16 halves[2];
  ASSERT_EQ(file.bytes(*b).size(), sizeof halves);
  std::memcpy(halves, file.bytes(*b).data(), sizeof halves);
  EXPECT_EQ(static_cast<float>(halves[0]), 1.0f);
  EXPECT_EQ(static_cast<float>(halves[1]), -2.0f);

  EXPECT_EQ(file.find("c"), nullptr);
}

TEST_F(SafetensorsFiles, WritesGoldenBytes) {
  const auto path = directory_ / "golden.safetensors";
  SafetensorsWriter writer(path, {{"w", DType::F32, {2, 1}}, {"b", DType::BF16, {2}}});
  const float w[] = {1.0f, -2.0f};
  const bf16 b[] = {bf16(1.0f), bf16(-2.0f)};
  writer.append("w", w, sizeof w);
  writer.append("b", b, sizeof b);
  const SafetensorsWriter::Result result = writer.finish();
  EXPECT_EQ(read_text_file(path), golden());
  EXPECT_EQ(result.bytes, 164u);
  EXPECT_EQ(result.hash, hash64(golden()));
}

TEST_F(SafetensorsFiles, TensorsMayBeWrittenInParts) {
  const auto path = directory_ / "parts.safetensors";
  SafetensorsWriter writer(path, {{"w", DType::F32, {2, 1}}, {"b", DType::BF16, {2}}});
  const float w[] = {1.0f, -2.0f};
  const bf16 b[] = {bf16(1.0f), bf16(-2.0f)};
  writer.append_part("w", w, 3);
  EXPECT_THROW(writer.append("b", b, sizeof b), Failure);
  EXPECT_THROW(writer.append_part("w", w, 6), Failure);
  writer.append_part("w", reinterpret_cast<const char*>(w) + 3, 5);
  EXPECT_THROW(writer.append("b", b, 2), Failure);
  writer.append_part("b", b, 2);
  EXPECT_THROW(writer.finish(), Failure);
  writer.append_part("b", b + 1, 2);
  EXPECT_EQ(writer.finish().hash, hash64(golden()));
  EXPECT_EQ(read_text_file(path), golden());
}

TEST_F(SafetensorsFiles, EveryTypeComesBack) {
  const auto path = directory_ / "all.safetensors";
  const std::vector<DType> types = {DType::U8,  DType::F64, DType::F32, DType::BF16,
                                    DType::F16, DType::I64, DType::I32};
  std::vector<SafetensorsWriter::Announced> tensors;
  for (const DType type : types) tensors.push_back({std::string(to_string(type)), type, {3}});
  SafetensorsWriter writer(path, tensors);
  for (std::size_t i = 0; i < types.size(); ++i) {
    const std::string data(3 * size_of(types[i]), static_cast<char>('a' + i));
    writer.append(tensors[i].name, data.data(), data.size());
  }
  writer.finish();

  const SafetensorsFile file(path);
  ASSERT_EQ(file.entries().size(), types.size());
  for (std::size_t i = 0; i < types.size(); ++i) {
    const SafetensorsEntry& entry = file.entries()[i];
    EXPECT_EQ(entry.name, to_string(types[i]));
    EXPECT_EQ(entry.dtype, types[i]);
    EXPECT_EQ(file.bytes(entry).size(), 3 * size_of(types[i]));
    EXPECT_EQ(static_cast<char>(file.bytes(entry).front()), static_cast<char>('a' + i));
  }
}

TEST_F(SafetensorsFiles, ScalarsEmptyTensorsAndOddNames) {
  const auto path = directory_ / "odd.safetensors";
  SafetensorsWriter writer(path, {{"empty", DType::F32, {0, 7}},
                                  {"a \"quoted\" Ångström\n", DType::F64, {}},
                                  {"also empty", DType::U8, {0}}});
  const double scalar = 0.5;
  writer.append("empty", nullptr, 0);
  writer.append("a \"quoted\" Ångström\n", &scalar, sizeof scalar);
  writer.append("also empty", nullptr, 0);
  writer.finish();

  const SafetensorsFile file(path);
  const SafetensorsEntry* found = file.find("a \"quoted\" Ångström\n");
  ASSERT_NE(found, nullptr);
  EXPECT_TRUE(found->shape.empty());
  EXPECT_EQ(std::memcmp(file.bytes(*found).data(), &scalar, sizeof scalar), 0);
  ASSERT_NE(file.find("empty"), nullptr);
  EXPECT_THAT(file.find("empty")->shape, ElementsAre(0, 7));
  EXPECT_TRUE(file.bytes(*file.find("empty")).empty());
  EXPECT_TRUE(file.bytes(*file.find("also empty")).empty());
}

TEST_F(SafetensorsFiles, WriterRefusesWhatWasNotAnnounced) {
  const float data[4] = {};
  const auto path = directory_ / "x.safetensors";
  EXPECT_THROW(SafetensorsWriter(path, {{"a", DType::F32, {1}}, {"a", DType::F32, {1}}}), Failure);
  EXPECT_THROW(SafetensorsWriter(path, {{"__metadata__", DType::F32, {1}}}), Failure);
  EXPECT_THROW(SafetensorsWriter(directory_ / "none" / "x.safetensors", {}), Failure);
  SafetensorsWriter writer(path, {{"a", DType::F32, {2}}, {"b", DType::F32, {2}}});
  EXPECT_THROW(writer.append("b", data, 8), Failure);
  EXPECT_THROW(writer.append("a", data, 4), Failure);
  writer.append("a", data, 8);
  EXPECT_THROW(writer.finish(), Failure);
  writer.append("b", data, 8);
  EXPECT_THROW(writer.append("c", data, 8), Failure);
  EXPECT_EQ(writer.finish().bytes, std::filesystem::file_size(path));
}

TEST(SafetensorsHeader, LengthsAndSyntax) {
  EXPECT_THAT(error_of(""), HasSubstr("some.safetensors has 0 bytes, too few"));
  EXPECT_THAT(error_of("1234567"), HasSubstr("too few"));
  EXPECT_THAT(error_of(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10)),  // 100,000,001
              HasSubstr("has a header length of 100000001 bytes, but the format allows 100000000"));
  EXPECT_THAT(
      error_of(std::string("\x03\0\0\0\0\0\0\0{}", 10)),
      HasSubstr(
          "has a header length of 3 bytes, but the file has 10 bytes: the file is truncated or "
          "damaged; copy it again"));
  EXPECT_THAT(error_of(file_of("")), HasSubstr("does not begin with a brace"));
  EXPECT_THAT(error_of(file_of(" {}")), HasSubstr("does not begin with a brace"));
  EXPECT_THAT(error_of(file_of("\xef\xbb\xbf{}")), HasSubstr("does not begin with a brace"));
  EXPECT_THAT(error_of(file_of("{\"a\":")), HasSubstr("not valid JSON at byte"));
  EXPECT_THAT(error_of(file_of("{}{}")), HasSubstr("not valid JSON at byte 3"));
  EXPECT_THAT(error_of(file_of(std::string("{}\0x", 4))), HasSubstr("zero byte"));
  EXPECT_THAT(error_of(file_of("{\"\xff\":1}")), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(file_of(R"({"a":1e999})")), HasSubstr("a number that is out of range"));
  EXPECT_TRUE(parse(file_of("{}   ")).entries.empty());
}

TEST(SafetensorsHeader, DuplicateKeys) {
  const std::string entry = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(error_of(file_of("{\"a\":" + entry + ",\"a\":" + entry + "}", "x")),
              HasSubstr("names 'a' twice"));
  EXPECT_THAT(error_of(file_of(
                  R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x")),
              HasSubstr("names 'dtype' twice"));
  EXPECT_THAT(error_of(file_of(R"({"__metadata__":{"k":"1","k":"2"}})")),
              HasSubstr("names 'k' twice"));
}

TEST(SafetensorsHeader, Metadata) {
  EXPECT_THAT(error_of(file_of(R"({"__metadata__":[]})")),
              HasSubstr("__metadata__ is not a JSON object"));
  EXPECT_THAT(error_of(file_of(R"({"__metadata__":{"k":1}})")),
              HasSubstr("key 'k' is not a string"));
  EXPECT_EQ(parse(file_of(R"({"__metadata__":{"k":"v"}})")).metadata.at("k"), "v");
  EXPECT_TRUE(parse(file_of(R"({"__metadata__":{}})")).metadata.empty());
}

std::string one(const std::string& fields) {
  return file_of("{\"t\":{" + fields + "}}", "0123456789ABCDEF");
}

TEST(SafetensorsHeader, Fields) {
  const std::string good = R"("dtype":"U8","shape":[16],"data_offsets":[0,16])";
  EXPECT_EQ(error_of(one(good)), "no error");
  EXPECT_EQ(error_of(one(good + R"(,"later_addition":{"x":[1]})")), "no error");
  EXPECT_THAT(error_of(file_of(R"({"t":[]})")),
              HasSubstr("tensor 't' is not described by a JSON object"));
  EXPECT_THAT(error_of(one(R"("shape":[16],"data_offsets":[0,16])")),
              HasSubstr("tensor 't' has no dtype"));
  EXPECT_THAT(error_of(one(R"("dtype":"U8","data_offsets":[0,16])")), HasSubstr("has no shape"));
  EXPECT_THAT(error_of(one(R"("dtype":"U8","shape":[16])")), HasSubstr("has no data_offsets"));
  EXPECT_THAT(error_of(one(R"("dtype":8,"shape":[16],"data_offsets":[0,16])")),
              HasSubstr("dtype that is not a string"));
  EXPECT_THAT(error_of(one(R"("dtype":"U8","shape":16,"data_offsets":[0,16])")),
              HasSubstr("shape that is not a list"));
  for (const char* extent :
       {"-1", "1.5", "\"16\"", "null", "18446744073709551615", "99999999999999999999"})
    EXPECT_THAT(
        error_of(one(fmt::format(R"("dtype":"U8","shape":[{}],"data_offsets":[0,16])", extent))),
        HasSubstr("shape with an entry that is not a size"))
        << extent;
  for (const char* offsets : {"[0]", "[0,8,16]", "[0,16.0]", "[-1,16]", "16", "[\"0\",16]"})
    EXPECT_THAT(
        error_of(one(fmt::format(R"("dtype":"U8","shape":[16],"data_offsets":{})", offsets))),
        HasSubstr("not two byte positions"))
        << offsets;
}

TEST(SafetensorsHeader, Sizes) {
  const auto with = [](const char* dtype, const char* shape, const char* offsets) {
    return error_of(
        one(fmt::format(R"("dtype":"{}","shape":{},"data_offsets":{})", dtype, shape, offsets)));
  };
  EXPECT_EQ(with("F32", "[2,2]", "[0,16]"), "no error");
  EXPECT_THAT(with("F32", "[2,2]", "[0,15]"), HasSubstr("of F32 needs 16 bytes and has 15"));
  EXPECT_THAT(with("F32", "[2,2]", "[16,0]"), HasSubstr("ends at byte 0 before it begins at 16"));
  EXPECT_THAT(with("U8", "[17]", "[0,17]"), HasSubstr("ends at byte 17 of 16 bytes of data"));
  EXPECT_THAT(with("U8", "[8]", "[0,8]"), HasSubstr("has 8 bytes of data after its last tensor"));
  EXPECT_THAT(with("U8", "[4294967296,4294967296]", "[0,16]"), HasSubstr("larger than any file"));
  // 2^64 + 16 elements in wrapping arithmetic would look like 16.
  EXPECT_THAT(with("U8", "[4294967296,4294967296,16]", "[0,16]"),
              HasSubstr("larger than any file"));
  // Types without a DType.
  EXPECT_EQ(with("F8_E4M3", "[4,4]", "[0,16]"), "no error");
  EXPECT_THAT(with("F8_E4M3", "[4,5]", "[0,16]"), HasSubstr("needs 20 bytes and has 16"));
  EXPECT_EQ(with("F4", "[32]", "[0,16]"), "no error");
  EXPECT_THAT(with("F4", "[31]", "[0,16]"),
              HasSubstr("needs 124 bits, not a whole number of bytes"));
  EXPECT_EQ(with("C64", "[2]", "[0,16]"), "no error");
  EXPECT_EQ(with("FROM_THE_FUTURE", "[3]", "[0,16]"), "no error");
  const SafetensorsHeader f8 =
      parse(one(R"("dtype":"F8_E4M3","shape":[16],"data_offsets":[0,16])"));
  EXPECT_EQ(f8.entries.at(0).dtype, std::nullopt);
  EXPECT_EQ(f8.entries.at(0).dtype_name, "F8_E4M3");
}

TEST(SafetensorsHeader, HolesAndOverlaps) {
  const auto two = [](const char* a_shape, const char* a, const char* b_shape, const char* b) {
    return error_of(file_of(
        fmt::format(
            R"({{"a":{{"dtype":"U8","shape":{},"data_offsets":{}}},"b":{{"dtype":"U8","shape":{},"data_offsets":{}}}}})",
            a_shape, a, b_shape, b),
        "12345678"));
  };
  EXPECT_EQ(two("[3]", "[0,3]", "[5]", "[3,8]"), "no error");
  EXPECT_EQ(two("[3]", "[5,8]", "[5]", "[0,5]"), "no error");
  EXPECT_EQ(two("[0]", "[8,8]", "[8]", "[0,8]"), "no error");
  EXPECT_THAT(two("[3]", "[0,3]", "[4]", "[4,8]"),
              HasSubstr("tensor 'b' begins at byte 4 of the data, which leaves a gap from byte 3"));
  EXPECT_THAT(two("[4]", "[0,4]", "[5]", "[3,8]"),
              HasSubstr("tensor 'b' begins at byte 3 of the data, which overlaps"));
  EXPECT_THAT(two("[8]", "[0,8]", "[0]", "[4,4]"), HasSubstr("overlaps"));
  EXPECT_THAT(two("[3]", "[0,3]", "[4]", "[3,7]"),
              HasSubstr("has 1 bytes of data after its last tensor"));
}

TEST(SafetensorsHeader, MessagesStayOnOneLine) {
  const std::string name(5000, 'n');
  EXPECT_LT(error_of(file_of("{\"" + name + "\":[]}")).size(), 300u);
  EXPECT_THAT(error_of(file_of(R"({"a\nb":[]})")), HasSubstr("'a?b'"));
}

// Changes, removes or doubles a few bytes of a valid file. The result must parse consistently or be
// a UserError.
TEST(SafetensorsHeader, Fuzz) {
  const std::string seeds[] = {golden(),
                               file_of(R"({"a":{"dtype":"F4","shape":[2,2],"data_offsets":[0,2]},)"
                                       R"("z":{"dtype":"I64","shape":[0],"data_offsets":[2,2]}})",
                                       "xy")};
  const std::string alphabet = "{}[]\",:0123456789-+.eE\\u\0\xff\xc3 \ntfn";
  std::mt19937_64 random(20240229);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string file = seeds[below(2)];
    for (std::size_t changes = 1 + below(4); changes > 0 && !file.empty(); --changes) {
      const std::size_t at = below(file.size());
      switch (below(5)) {
        case 0:
          file[at] = static_cast<char>(random());
          break;
        case 1:
          file[at] = static_cast<char>(file[at] ^ (1 << below(8)));
          break;
        case 2:
          file.erase(at, 1 + below(8));
          break;
        case 3:
          file.insert(at, file.substr(below(file.size()), below(16)));
          break;
        default:
          file[at] = alphabet[below(alphabet.size())];
          break;
      }
    }
    // Correct the length half of the time; otherwise most files would fail the first check.
    if (file.size() >= 8 && below(2) == 0) {
      const std::uint64_t length =
          file.rfind('}') == std::string::npos || file.rfind('}') < 8 ? 0 : file.rfind('}') - 7;
      std::memcpy(file.data(), &length, 8);
    }
    try {
      const SafetensorsHeader header = parse(file);
      std::uint64_t covered = 0;
      for (const SafetensorsEntry& entry : header.entries) {
        ASSERT_EQ(entry.begin, covered);
        ASSERT_LE(entry.begin, entry.end);
        covered = entry.end;
      }
      ASSERT_EQ(covered + header.data_offset, file.size());
      ++accepted;
    } catch (const UserError&) {
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 19000);
}

TEST(SafetensorsHeader, DeepNesting) {
  EXPECT_THAT(error_of(file_of("{\"a\":" + std::string(200'000, '['))),
              HasSubstr("not valid JSON"));
  EXPECT_THAT(
      error_of(file_of("{\"a\":" + std::string(50'000, '[') + std::string(50'000, ']') + "}")),
      HasSubstr("tensor 'a'"));
}

// ---- directories

std::string single_tensor(const std::string& name, const std::string& data) {
  return file_of(fmt::format(R"({{"{}":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}}}})",
                             name, data.size(), data.size()),
                 data);
}

TEST_F(SafetensorsFiles, ModelInOneFile) {
  const auto path = put("model.safetensors", golden());
  for (const auto& given : {path, directory_}) {
    SafetensorsModel first(given);
    const SafetensorsModel model(std::move(first));  // look-ups survive a move
    EXPECT_THAT(model.names(), ElementsAre("w", "b"));
    ASSERT_TRUE(model.find("w"));
    EXPECT_EQ(model.find("w").file->path(), path);
    EXPECT_EQ(model.find("w").bytes().size(), 8u);
    EXPECT_FALSE(model.find("v"));
  }
}

TEST_F(SafetensorsFiles, ModelInShards) {
  put("model-00001-of-00002.safetensors", single_tensor("a", "AAA"));
  put("model-00002-of-00002.safetensors", single_tensor("b", "BB"));
  put("model.safetensors.index.json",
      R"({"metadata":{"total_size":5},"weight_map":{"b":"model-00002-of-00002.safetensors","a":"model-00001-of-00002.safetensors"}})");
  const SafetensorsModel model(directory_);
  EXPECT_THAT(model.names(), UnorderedElementsAre("a", "b"));
  EXPECT_EQ(model.files().size(), 2u);
  ASSERT_TRUE(model.find("a"));
  ASSERT_TRUE(model.find("b"));
  EXPECT_EQ(static_cast<char>(model.find("a").bytes()[2]), 'A');
  EXPECT_EQ(model.find("b").bytes().size(), 2u);
  EXPECT_EQ(model.find("b").file->path().filename(), "model-00002-of-00002.safetensors");
}

TEST_F(SafetensorsFiles, OtherStems) {
  put("optimizer.safetensors", single_tensor("m", "MM"));
  const SafetensorsModel single(directory_, "optimizer");
  EXPECT_THAT(single.names(), ElementsAre("m"));
  EXPECT_THAT(model_error(directory_), HasSubstr("holds neither model.safetensors nor"));
  std::filesystem::remove(directory_ / "optimizer.safetensors");
  put("part.safetensors", single_tensor("v", "V"));
  put("optimizer.safetensors.index.json", R"({"weight_map":{"v":"part.safetensors"}})");
  EXPECT_TRUE(SafetensorsModel(directory_, "optimizer").find("v"));
}

// Files written by the reference library: one model, as one file and in three shards.
TEST_F(SafetensorsFiles, ReferenceFilesWholeAndSharded) {
  const std::filesystem::path data = test_data_directory();
  const SafetensorsModel whole(data / "llama"), sharded(data / "llama-sharded");
  EXPECT_EQ(sharded.files().size(), 3u);
  EXPECT_EQ(whole.names().size(), sharded.names().size());
  std::size_t total = 0;
  for (const std::string& name : whole.names()) {
    const auto a = whole.find(name), b = sharded.find(name);
    ASSERT_TRUE(b) << name;
    EXPECT_EQ(a.entry->shape, b.entry->shape) << name;
    EXPECT_TRUE(std::ranges::equal(a.bytes(), b.bytes())) << name;
    total += a.bytes().size();
  }
  EXPECT_EQ(total, 85376u);  // metadata.total_size of the index
}

TEST_F(SafetensorsFiles, ModelThatIsIncomplete) {
  const std::string index = "model.safetensors.index.json";
  EXPECT_THAT(model_error(directory_ / "nowhere"), HasSubstr("does not exist"));
  EXPECT_THAT(model_error(directory_), HasSubstr("holds neither model.safetensors nor"));
  put("shard.safetensors", single_tensor("a", "AAA"));
  put(index, R"({"weight_map":{"a":"shard.safetensors","b":"other.safetensors"}})");
  EXPECT_THAT(model_error(directory_), HasSubstr("other.safetensors is missing"));
  EXPECT_THAT(model_error(directory_), HasSubstr("maps tensor 'b' to it: copy the missing shard"));
  put(index, R"({"weight_map":{"b":"shard.safetensors"}})");
  EXPECT_THAT(model_error(directory_),
              HasSubstr("maps tensor 'b' to shard.safetensors, which does not hold it"));
  for (const char* shard :
       {"../shard.safetensors", "/etc/passwd", "a\\\\b", "", "..", "x\\u0000y"}) {
    put(index, fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", shard));
    EXPECT_THAT(model_error(directory_), HasSubstr("not a file name in its directory")) << shard;
  }
  put(index, R"({"weight_map":{"a":1}})");
  EXPECT_THAT(model_error(directory_), HasSubstr("not a file name"));
  put(index, R"({"weight_map":{"a":"shard.safetensors","a":"shard.safetensors"}})");
  EXPECT_THAT(model_error(directory_), HasSubstr("names 'a' twice"));
  for (const char* text : {R"({"weight_map":[]})", "{}", "[1]", "3"}) {
    put(index, text);
    EXPECT_THAT(model_error(directory_), HasSubstr("has no weight_map")) << text;
  }
  for (const char* text : {"", "{", "nonsense"}) {
    put(index, text);
    EXPECT_THAT(model_error(directory_), HasSubstr("not valid JSON")) << text;
  }
  put("model.safetensors", golden().substr(0, 160));
  EXPECT_THAT(
      model_error(directory_),
      HasSubstr(
          "model.safetensors: tensor 'b' ends at byte 12 of 8 bytes of data: the file is truncated "
          "or damaged; copy it again"));
}

}  // namespace
}  // namespace kintsugi
