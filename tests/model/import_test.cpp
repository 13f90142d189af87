// Checkpoints of Megatron and torchtitan (tests/data/make_import_fixtures.py writes them).
#include "model/import/import.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>

#include "model/config.h"
#include "model/files/stored_model.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

// A namespace of its own: the names of helpers are short.
namespace kintsugi::import_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using namespace std::string_literals;
using Kind = PickleValue::Kind;

fs::path data() { return test_data_directory(); }

struct Fixture {
  const char *checkpoint, *model;  // the model in tests/data with the same weights
  CheckpointFormat format;
};
constexpr Fixture kFixtures[] = {
    {"dcp-llama", "llama", CheckpointFormat::Dcp},
    {"dcp-qwen3", "import/tiny-qwen3", CheckpointFormat::Dcp},
    {"torch-dist-qwen3", "qwen3", CheckpointFormat::TorchDist},
    {"torch-dist-llama", "import/tiny-llama", CheckpointFormat::TorchDist},
    {"torch-dist-gpt2", "import/tiny-gpt2", CheckpointFormat::TorchDist},
    {"megatron-gpt2", "gpt2", CheckpointFormat::Megatron},
    {"megatron-qwen2", "import/tiny-qwen2", CheckpointFormat::Megatron}};

fs::path checkpoint_of(const Fixture& fixture) { return data() / "import" / fixture.checkpoint; }

ModelConfig config_of(const Fixture& fixture) {
  return read_model_directory(data() / fixture.model);
}

// Every tensor of the model, bit for bit.
TEST(Import, HasTheBitsOfTheModel) {
  for (const Fixture& fixture : kFixtures) {
    SCOPED_TRACE(fixture.checkpoint);
    const TemporaryDirectory directory;
    const WrittenModel written =
        import_model(checkpoint_of(fixture), config_of(fixture), directory / "m");
    const StoredModel expected(data() / fixture.model), imported(directory / "m");
    EXPECT_EQ(written.tensors, expected.names.size());
    EXPECT_EQ(imported.names.size(), expected.names.size());
    EXPECT_EQ(imported.config, expected.config);
    for (const std::string& name : expected.names) {
      const auto mine = imported.tensors.find(name), theirs = expected.tensors.find(name);
      ASSERT_TRUE(mine) << name;
      EXPECT_EQ(mine.entry->dtype, theirs.entry->dtype) << name;
      EXPECT_EQ(mine.entry->shape, theirs.entry->shape) << name;
      EXPECT_TRUE(std::ranges::equal(mine.bytes(), theirs.bytes())) << name;
    }
    EXPECT_EQ(ForeignCheckpoint(checkpoint_of(fixture), CheckpointFormat::Auto, true).format(),
              fixture.format);
  }
}

TEST(Import, ConvertsAndCopiesATokenizer) {
  const TemporaryDirectory directory;
  fs::create_directories(directory / "t");
  directory.write("t/tokenizer.json", "{}");
  import_model(checkpoint_of(kFixtures[0]), config_of(kFixtures[0]), directory / "m",
               {.format = CheckpointFormat::Dcp,
                .tokenizer = directory / "t",
                .output = {.dtype = DType::BF16, .max_shard_bytes = 20'000, .block = 100}});
  const StoredModel imported(directory / "m"), original(data() / "llama");
  EXPECT_EQ(content_of(directory / "m/tokenizer.json"), "{}");
  EXPECT_TRUE(fs::exists(directory / "m/model.safetensors.index.json"));
  for (const std::string& name : original.names) {
    const auto mine = imported.tensors.find(name), theirs = original.tensors.find(name);
    const auto count = static_cast<std::size_t>(elements_of(*theirs.entry));
    std::vector<double> values(count);
    to_doubles(theirs.bytes().data(), DType::F32, values);
    std::vector<std::byte> rounded(2 * count);
    from_doubles(values, DType::BF16, rounded.data());
    EXPECT_TRUE(std::ranges::equal(mine.bytes(), rounded)) << name;
  }
}

// What the import of a fixture with another configuration, or of changed files, says. Nothing is
// written.
class ImportMistakes : public testing::Test {
 protected:
  std::string mistake(const Fixture& fixture,
                      const std::function<void(ModelConfig& config)>& change_model,
                      const std::function<void(const fs::path& checkpoint)>& change_files = {},
                      CheckpointFormat format = CheckpointFormat::Auto) {
    const fs::path copy = directory_ / "checkpoint";
    fs::remove_all(copy);
    fs::copy(checkpoint_of(fixture), copy, fs::copy_options::recursive);
    if (change_files) change_files(copy);
    ModelConfig config = config_of(fixture);
    if (change_model) change_model(config);
    config.complete_and_check();
    const std::string text =
        user_error_of([&] { import_model(copy, config, directory_ / "m", {.format = format}); });
    EXPECT_FALSE(fs::exists(directory_ / "m")) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }
  static void replace(const fs::path& file, const std::string& from, const std::string& to) {
    std::string text = content_of(file);
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    std::ofstream(file, std::ios::binary) << text;
  }

  TemporaryDirectory directory_;
  const Fixture &dcp_ = kFixtures[0], &torch_dist_ = kFixtures[2], &megatron_ = kFixtures[5],
                &virtual_ = kFixtures[6];
};

TEST_F(ImportMistakes, AnotherModelIsNotImported) {
  EXPECT_THAT(
      mistake(dcp_, [](ModelConfig& c) { c.layers = 1; }),
      AllOf(HasSubstr("9 tensors are not used"), HasSubstr("layers.1.attention.wk.weight")));
  EXPECT_THAT(mistake(dcp_, [](ModelConfig& c) { c.layers = 3; }),
              AllOf(HasSubstr("no tensor attention.wq.weight of layer 2"),
                    HasSubstr("model.layers.2.self_attn.q_proj.weight")));
  EXPECT_THAT(mistake(dcp_, [](ModelConfig& c) { c.ffn_size = 64; }),
              AllOf(HasSubstr("[56, 32]"), HasSubstr("[64, 32]")));
  EXPECT_THAT(mistake(dcp_, [](ModelConfig& c) { c.vocab_size = 60; }), HasSubstr("[67, 32]"));
  EXPECT_THAT(mistake(dcp_, [](ModelConfig& c) { c.tied = true; }),
              HasSubstr("output.weight differs from tok_embeddings.weight"));
  EXPECT_THAT(mistake(dcp_, [](ModelConfig& c) { c.family = Family::Qwen2; }),
              HasSubstr("of torchtitan, llama and qwen3 can be imported"));
  EXPECT_THAT(mistake(dcp_, [](ModelConfig& c) { c.family = Family::Olmo2; }),
              HasSubstr("llama, qwen2, qwen3 and gpt2 can be imported"));
  EXPECT_THAT(mistake(torch_dist_, [](ModelConfig& c) { c.layers = 1; }),
              HasSubstr("num_layers 2, but layers of --model is 1"));
  EXPECT_THAT(mistake(torch_dist_, [](ModelConfig& c) { c.tied = false; }),
              HasSubstr("no tensor output_layer.weight, which lm_head.weight of the model needs"));
  EXPECT_THAT(mistake(torch_dist_, [](ModelConfig& c) { c.norm_eps = 1e-5; }),
              HasSubstr("norm_epsilon 1e-06, but norm_eps of --model is 1e-05"));
  // The shapes of 4 query heads with 4 keys of half the size are the same.
  EXPECT_THAT(
      mistake(torch_dist_, [](ModelConfig& c) { c.heads = 8, c.head_dim = 8, c.kv_heads = 4; }),
      HasSubstr("num_attention_heads 4, but heads of --model is 8"));
}

// Flags of the run after which the same weights are another model.
TEST_F(ImportMistakes, OtherArithmeticIsRefused) {
  for (const std::string flag : {"rotary_interleaved", "apply_layernorm_1p"}) {
    const std::string text = mistake(torch_dist_, {}, [&](const fs::path& checkpoint) {
      const fs::path file = checkpoint / "iter_0000020/common.pt";
      const std::string content = content_of(file);
      const std::size_t value = content.find(flag) + flag.size() + 2;  // behind BINPUT
      ASSERT_EQ(content[value], '\x89') << "not False";
      replace(file, content.substr(value - 9, 10), content.substr(value - 9, 9) + '\x88');
    });
    EXPECT_THAT(text, HasSubstr("its run had " + flag + ", which no model of kintsugi has"));
  }
}

TEST_F(ImportMistakes, MissingAndDamagedFilesAreNamed) {
  EXPECT_THAT(mistake(dcp_, {}, [](const fs::path& c) { fs::remove(c / "__1_0.distcp"); }),
              HasSubstr("__1_0.distcp is missing"));
  EXPECT_THAT(
      mistake(dcp_, {}, [](const fs::path& c) { fs::resize_file(c / "__1_0.distcp", 500); }),
      AllOf(HasSubstr("__1_0.distcp: tensor "), HasSubstr("ends behind the file")));
  EXPECT_THAT(mistake(dcp_, {}, [](const fs::path& c) { fs::remove(c / ".metadata"); }),
              HasSubstr("has no .metadata"));
  EXPECT_THAT(
      mistake(dcp_, {},
              [](const fs::path& c) { replace(c / ".metadata", "__0_0.distcp", "../00.distcp"); }),
      HasSubstr("the file name '../00.distcp' leaves the directory"));
  EXPECT_THAT(mistake(dcp_, {}, {}, CheckpointFormat::Megatron),
              HasSubstr("has no mp_rank_… directories"));
  EXPECT_THAT(mistake(megatron_, {},
                      [](const fs::path& c) { fs::remove_all(c / "iter_0000007/mp_rank_01_000"); }),
              HasSubstr("lacks the directory of a rank"));
  EXPECT_THAT(mistake(megatron_, {},
                      [](const fs::path& c) {
                        fs::remove(c / "iter_0000007/mp_rank_01_000/model_optim_rng.pt");
                      }),
              HasSubstr("mp_rank_01_000 has no model_optim_rng.pt"));
  EXPECT_THAT(mistake(megatron_, {},
                      [](const fs::path& c) {
                        std::ofstream(c / "latest_checkpointed_iteration.txt") << "8";
                      }),
              HasSubstr("iter_0000008, which does not exist"));
  EXPECT_THAT(mistake(virtual_, {},
                      [](const fs::path& c) {
                        fs::copy_file(data() / "import/hostile.pt",
                                      c / "iter_0000007/mp_rank_01_001/model_optim_rng.pt",
                                      fs::copy_options::overwrite_existing);
                      }),
              AllOf(HasSubstr("the global posix.system"), HasSubstr("nothing in it was executed")));
  EXPECT_THAT(mistake(dcp_, {},
                      [](const fs::path& c) {
                        std::ofstream(c / ".metadata", std::ios::binary)
                            << "\x80\x02"
                               "cposix\nsystem\nX\x02\0\0\0ls\x85R."s;
                      }),
              AllOf(HasSubstr(".metadata: the pickle has the global posix.system"),
                    HasSubstr("nothing in it was executed")));
  EXPECT_FALSE(fs::exists("executed"));
}

TEST_F(ImportMistakes, TheInputIsNotTheOutput) {
  fs::copy(checkpoint_of(dcp_), directory_ / "c", fs::copy_options::recursive);
  EXPECT_THAT(user_error_of([&] {
                import_model(directory_ / "c", config_of(dcp_), directory_ / "c",
                             {.output = {.overwrite = true}});
              }),
              HasSubstr("would replace the input"));
}

// ---- pickles

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

// Python's pickles of {'a': [1, -2, 300, 2**40, -2**33, 2**80, 3.5, None, True, False, b'xy', 'ü'],
// 't': (1, (), (2, 3, 4, 5)), 's': {7}} with v['again'] = v['a'], in protocols 2, 3, and 4 or 5.
TEST(Pickle, HasPythonsValues) {
  const std::string two =
      "80027d71002858010000006171015d7102284b014afeffffff4d2c018a060000000000018a0500000000fe8a0b00"
      "0000000000000000000147400c0000000000004e8889635f636f646563730a656e636f64650a7103580200000078"
      "79710458060000006c6174696e3171058671065271075802000000c3bc71086558010000007471094b0129284b02"
      "4b034b044b0574710a87710b580100000073710c635f5f6275696c74696e5f5f0a7365740a710d5d710e4b076185"
      "710f5271105805000000616761696e71116802752e";
  const std::string three =
      "80037d71002858010000006171015d7102284b014afeffffff4d2c018a060000000000018a0500000000fe8a0b00"
      "0000000000000000000147400c0000000000004e88894302787971035802000000c3bc7104655801000000747105"
      "4b0129284b024b034b044b057471068771075801000000737108636275696c74696e730a7365740a71095d710a4b"
      "076185710b52710c5805000000616761696e710d6802752e";
  const std::string four =
      "80049571000000000000007d94288c0161945d94284b014afeffffff4d2c018a060000000000018a0500000000fe"
      "8a0b000000000000000000000147400c0000000000004e888943027879948c02c3bc94658c0174944b0129284b02"
      "4b034b044b05749487948c0173948f94284b07908c05616761696e946802752e";
  for (const std::string& hex : {two, three, four}) {
    const Pickle pickle(from_hex(hex), "p");
    const PickleValue* const a = pickle.root().find("a");
    ASSERT_TRUE(a && a->items.size() == 12);
    const auto& items = a->items;
    const std::int64_t integers[] = {1, -2, 300, std::int64_t{1} << 40, -(std::int64_t{1} << 33)};
    for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(items[i]->integer, integers[i]);
    EXPECT_EQ(items[5]->text, std::string(10, '\0') + "\x01");
    EXPECT_EQ(items[6]->real, 3.5);
    EXPECT_EQ(items[7]->kind, Kind::None);
    EXPECT_EQ(items[8]->integer, 1);
    EXPECT_EQ(items[9]->kind, Kind::Bool);
    EXPECT_EQ(items[11]->text, "ü");
    if (hex != two) {
      EXPECT_EQ(items[10]->text, "xy");
    }
    const PickleValue* const t = pickle.root().find("t");
    ASSERT_TRUE(t && t->items.size() == 3);
    EXPECT_EQ(t->items[1]->items.size(), 0U);
    EXPECT_EQ(t->items[2]->items.size(), 4U);
    EXPECT_EQ(t->items[2]->items[3]->integer, 5);
    EXPECT_EQ(pickle.root().find("again"), a);
    ASSERT_TRUE(pickle.root().find("s"));
    EXPECT_EQ(pickle.root().find("x"), nullptr);
  }
}

TEST(Pickle, RefusesWhatWouldExecute) {
  const auto refused = [](const std::string& bytes) {
    return user_error_of([&] { const Pickle pickle("\x80\x02" + bytes, "p.pkl"); });
  };
  EXPECT_THAT(refused("cos\nsystem\nX\x02\0\0\0ls\x85R."s), HasSubstr("the global os.system"));
  EXPECT_THAT(refused("cbuiltins\neval\n."),
              HasSubstr("p.pkl: the pickle has the global builtins.eval"));
  EXPECT_THAT(refused("\x8c\x02os\x8c\x06system\x93."), HasSubstr("the global os.system"));
  EXPECT_THAT(refused("ctorch\nhub.load\n."), HasSubstr("the global torch.hub.load"));
  EXPECT_THAT(refused("(ios\nsystem\n."), HasSubstr("opcode 0x69"));
  EXPECT_THAT(refused("N)R."), HasSubstr("calls what is no global"));
  EXPECT_THAT(refused("]N"), HasSubstr("ends too early"));
  EXPECT_THAT(refused("0."), HasSubstr("takes a value that is not there"));
  EXPECT_THAT(refused("h\x07."), HasSubstr("reads the memo 7"));
  EXPECT_THAT(refused("}Ns."), HasSubstr("takes a value that is not there"));
  EXPECT_THAT(refused("B\xff\xff\xff\xff."), HasSubstr("ends too early"));
  EXPECT_THAT(user_error_of([] { const Pickle pickle("(dp0\n.", "p"); }),
              HasSubstr("no pickle of protocol 2 to 5"));
  // A list that contains itself, and a million nested lists: neither is visited recursively.
  const Pickle circle("\x80\x02]q\0h\0a."s, "p");
  EXPECT_EQ(circle.root().items[0], &circle.root());
  const Pickle deep("\x80\x02" + std::string(1'000'000, ']') + std::string(999'999, 'a') + ".",
                    "p");
  EXPECT_EQ(deep.root().items.size(), 1U);
}

// ---- zips

std::string little(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 255);
  return text;
}

// A zip as its specification has it.
struct Entry {
  std::string name, data;
  int method = 0;
  std::int64_t offset = -1, size = -1;  // in the directory, if they are other ones
};
std::string zip_of(const std::vector<Entry>& entries, bool wide = false) {
  std::string file, directory;
  for (const Entry& e : entries) {
    const std::uint64_t at = e.offset < 0 ? file.size() : static_cast<std::uint64_t>(e.offset);
    const std::uint64_t size = e.size < 0 ? e.data.size() : static_cast<std::uint64_t>(e.size);
    const std::string names = little(e.name.size(), 2);
    file += "PK\x03\x04" + std::string(14, '\0') + little(e.data.size(), 4) +
            little(e.data.size(), 4) + names + little(3, 2) + e.name + "pad" + e.data;
    const auto number = [&](std::uint64_t value) { return little(wide ? 0xffffffff : value, 4); };
    const std::string extra =
        wide ? little(1, 2) + little(24, 2) + little(size, 8) + little(size, 8) + little(at, 8)
             : "";
    directory += "PK\x01\x02" + std::string(6, '\0') +
                 little(static_cast<std::uint64_t>(e.method), 2) + std::string(8, '\0') +
                 number(size) + number(size) + names + little(extra.size(), 2) +
                 std::string(10, '\0') + number(at) + e.name + extra;
  }
  const std::uint64_t start = file.size(), count = entries.size();
  file += directory;
  if (wide) {
    const std::uint64_t end = file.size();
    file += "PK\x06\x06" + little(44, 8) + std::string(12, '\0') + little(count, 8) +
            little(count, 8) + little(directory.size(), 8) + little(start, 8);
    file += "PK\x06\x07" + std::string(4, '\0') + little(end, 8) + little(1, 4);
  }
  return file + "PK\x05\x06" + std::string(4, '\0') + little(wide ? 0xffff : count, 2) +
         little(wide ? 0xffff : count, 2) + little(wide ? 0xffffffff : directory.size(), 4) +
         little(wide ? 0xffffffff : start, 4) + std::string(2, '\0');
}

StoredZip read_zip(const std::string& file) {
  return StoredZip(std::as_bytes(std::span(file)), "a.zip");
}

TEST(StoredZip, ReadsEntriesOf32And64Bits) {
  for (const bool wide : {false, true}) {
    const std::string file = zip_of({{"a/x", "hello"}, {"a/empty", ""}, {"b", "!"}}, wide);
    const StoredZip zip = read_zip(file);
    ASSERT_EQ(zip.entries().size(), 3U);
    const auto x = zip.entries().at("a/x");
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(x.data()), x.size()), "hello");
    EXPECT_EQ(zip.entries().at("a/empty").size(), 0U);
  }
}

TEST(StoredZip, RefusesHostileOnes) {
  const auto refused = [](const std::string& file) {
    return user_error_of([&] { read_zip(file); });
  };
  for (const bool wide : {false, true}) {
    EXPECT_THAT(refused(zip_of({{"a", "x"}, {"a", "y"}}, wide)), HasSubstr("two entries a"));
    EXPECT_THAT(refused(zip_of({{"a", "x", 8}}, wide)), HasSubstr("compressed entry a"));
    EXPECT_THAT(refused(zip_of({{"a", "x", 0, -1, 1'000'000'000}}, wide)),
                HasSubstr("entry a outside the file"));
    EXPECT_THAT(refused(zip_of({{"a", "x", 0, 999}}, wide)), HasSubstr("entry a outside the file"));
    // The second entry is inside the first.
    const std::string inner =
        "PK\x03\x04" + std::string(22, '\0') + little(1, 2) + little(0, 2) + "b";
    EXPECT_THAT(refused(zip_of({{"a", inner + "data"}, {"b", "", 0, 34, 4}}, wide)),
                HasSubstr("entries that overlap"));
    EXPECT_THAT(refused(zip_of({{"a", "x"}, {"b", "y", 0, 0}}, wide)), HasSubstr("two names"));
    const std::string good = zip_of({{"a", "x"}}, wide);
    EXPECT_THAT(refused(good.substr(0, good.size() - 1)), HasSubstr("no directory"));
    EXPECT_THAT(refused(good + "x"), HasSubstr("no directory"));
  }
  EXPECT_THAT(refused("PK"), HasSubstr("too short"));
}

// ---- metadata of torch DCP

std::string text(const std::string& value) { return "X" + little(value.size(), 4) + value; }
std::string tuple(const std::vector<std::int64_t>& values) {
  std::string items;
  for (const std::int64_t value : values)
    items += "\x8a\x08" + little(static_cast<std::uint64_t>(value), 8);
  return "(" + items + "t";
}
std::string object(const std::string& name, const std::string& pairs) {
  return "ctorch.distributed.checkpoint.metadata\n" + name + "\n)\x81}(" + pairs + "ub";
}
// A dict of eight times the same dict of eight times the same …: small, but endless to visit.
TEST(LegacyFile, NestedDictsEnd) {
  std::string pickle = "\x80\x02}q\0"s;
  for (char level = 1; level < 14; ++level) {
    pickle += "}q"s + level + "(";
    for (int i = 0; i < 8; ++i) pickle += text(std::string(1, 'a' + i)) + "h" + char(level - 1);
    pickle += "u";
  }
  const TemporaryDirectory directory;
  fs::create_directories(directory / "mp_rank_00");
  std::ofstream(directory / "mp_rank_00/model_optim_rng.pt", std::ios::binary)
      << zip_of({{"archive/data.pkl", pickle + "}" + text("model") + "h\x0ds."}});
  EXPECT_THAT(
      user_error_of([&] { ForeignCheckpoint(directory.path(), CheckpointFormat::Megatron, true); }),
      HasSubstr("nested too deeply"));
}

using Offsets = std::vector<std::int64_t>;
// A pickle of protocol 2 of one tensor with these chunks, and their blobs.
struct TestChunk {
  Offsets offsets, sizes;
};
std::string metadata_of(const Offsets& shape, const std::vector<TestChunk>& chunks,
                        const std::vector<Offsets>& blobs) {
  std::string list, storage;
  for (const TestChunk& chunk : chunks)
    list += object("ChunkStorageMetadata",
                   text("offsets") + tuple(chunk.offsets) + text("sizes") + tuple(chunk.sizes));
  for (const Offsets& offsets : blobs)
    storage += object("MetadataIndex", text("fqn") + text("w") + text("offset") + tuple(offsets)) +
               object("_StorageInfo", text("relative_path") + text("f") + text("offset") + "K\0"s +
                                          text("length") + "K\x01");
  const std::string properties = object("TensorProperties", text("dtype") + "ctorch\nfloat32\n");
  return "\x80\x02" +
         object("Metadata", text("state_dict_metadata") + "}" + text("w") +
                                object("TensorStorageMetadata",
                                       text("properties") + properties + text("size") +
                                           tuple(shape) + text("chunks") + "](" + list + "e") +
                                "s" + text("storage_data") + "}(" + storage + "u") +
         ".";
}

TEST(DcpMetadata, EveryElementIsInOneChunk) {
  const TemporaryDirectory directory;
  const auto refused = [&](const Offsets& shape, const std::vector<TestChunk>& chunks,
                           std::vector<Offsets> blobs = {}) {
    if (blobs.empty())
      for (const TestChunk& chunk : chunks) blobs.push_back(chunk.offsets);
    std::ofstream(directory / ".metadata", std::ios::binary) << metadata_of(shape, chunks, blobs);
    std::ofstream(directory / "f") << "x";
    return user_error_of([&] {
      const ForeignCheckpoint checkpoint(directory.path(), CheckpointFormat::Dcp, true);
      checkpoint.read("w", Offsets(shape.size()), {1, 1});
    });
  };
  const TestChunk first{{0, 0}, {2, 3}}, second{{2, 0}, {2, 3}};
  // All is covered: only now a blob is read, which is none.
  EXPECT_THAT(refused({4, 3}, {first, second}), HasSubstr("f: tensor w: the zip is too short"));
  EXPECT_THAT(refused({4, 3}, {first}), HasSubstr("6 of its 12 elements: a chunk is missing"));
  EXPECT_THAT(refused({4, 3}, {second, first}, {{2, 0}}), HasSubstr("lacks the chunk at [0, 0]"));
  EXPECT_THAT(refused({4, 3}, {first, second}, {{0, 0}, {2, 0}, {0, 0}}),
              HasSubstr("tensor w has the chunk at [0, 0] twice"));
  EXPECT_THAT(refused({4, 3}, {first, first}, {{0, 0}}), HasSubstr("the chunk at [0, 0] twice"));
  EXPECT_THAT(refused({4, 3}, {first, {{1, 0}, {2, 3}}}), HasSubstr("overlapping chunks"));
  EXPECT_THAT(refused({4, 3}, {first, {{2, 0}, {3, 3}}}), HasSubstr("a chunk outside at [2, 0]"));
  EXPECT_THAT(refused({4, 3}, {first, {{2, 1}, {2, 3}}}), HasSubstr("a chunk outside at [2, 1]"));
  EXPECT_THAT(refused({4, 3}, {first, {{2}, {2}}}), HasSubstr("another number of dimensions"));
  EXPECT_THAT(refused({std::int64_t{1} << 47, std::int64_t{1} << 47}, {first}),
              HasSubstr("too large"));
  EXPECT_THAT(refused({-1, 3}, {first}), HasSubstr("no number, or too large"));
}

}  // namespace
}  // namespace kintsugi::import_test
