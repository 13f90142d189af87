// The rules of docs/architecture.md, read from the source: who may include whom, and that no code
// reads messages.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "support/paths.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Folders = std::set<std::string>;

const fs::path kSource = fs::path(source_directory()) / "src";

// core <- tensor <- {backend, comm} <- model <- parallel <- optim <- train <- cli. data, energy and
// http are leaves; report stands on energy and http; plan stands on model and parallel; eval on
// serve, and train on eval; launch on plan and train. Each may include itself and these:
const std::map<std::string, Folders> kBelow = {
    {"core", {}},
    {"tensor", {"core"}},
    {"backend", {"core", "tensor"}},
    {"comm", {"core", "tensor", "backend"}},
    {"model", {"core", "tensor", "backend", "comm"}},
    {"parallel", {"core", "tensor", "backend", "comm", "model"}},
    {"optim", {"core", "tensor", "backend", "comm", "model", "parallel"}},
    {"data", {"core", "tensor"}},
    {"energy", {"core", "tensor"}},
    {"http", {"core"}},
    {"report", {"core", "tensor", "energy", "http"}},
    {"plan", {"core", "tensor", "backend", "comm", "model", "parallel", "optim", "energy"}},
    {"serve",
     {"core", "tensor", "backend", "comm", "model", "parallel", "optim", "data", "http", "report"}},
    {"eval", {"core", "tensor", "backend", "comm", "model", "parallel", "optim", "data", "serve"}},
    {"launch",
     {"core", "tensor", "backend", "comm", "model", "parallel", "optim", "data", "energy", "report",
      "plan", "train"}},
    {"train",
     {"core", "tensor", "backend", "comm", "model", "parallel", "optim", "data", "energy", "http",
      "report", "serve", "eval"}},
};

std::string folder_of(const std::string& path) { return path.substr(0, path.find('/')); }

// "backend/gpu" of "backend/gpu/matmul.h"; empty where the file belongs to no backend.
std::string backend_of(const std::string& path) {
  static const std::regex backend("^((?:backend|comm)/[a-z]+)/.*");
  if (path.starts_with("backend/checks/")) return "";  // of all backends
  std::smatch match;
  return std::regex_match(path, match, backend) ? match[1].str() : "";
}

// What is wrong with src/`file` including "`included`", or nothing.
std::string complaint(const std::string& file, const std::string& included) {
  const std::string from = folder_of(file), to = folder_of(included);
  if (from == "cli") return "";
  const auto rule = kBelow.find(from);
  if (rule == kBelow.end()) return "no rule for the folder " + from;
  if (from != to && !rule->second.contains(to))
    return from + " stands below " + to + ", or beside it";
  const std::string backend = backend_of(included);
  // The stand-in for a backend that was not built implements its header.
  const bool stand_in = file == backend + "_missing.cpp";
  // The planner and the costs in profiles count on the sim backend.
  const bool simulated =
      (from == "plan" || file.starts_with("backend/operation_cost.")) && backend.ends_with("/sim");
  // Collectives run on streams of the GPU, of any vendor.
  const bool on_streams = file.starts_with("comm/nccl/") && included == "backend/gpu/runtime.h";
  if (!backend.empty() && backend_of(file) != backend && !stand_in && !simulated && !on_streams)
    return "only cli picks a backend";
  if (from == "model" && to == "backend" && included != "backend/backend.h" &&
      included != "backend/phase.h")
    return "layers know the interface only";
  return "";
}

struct SourceFile {
  std::string name;  // from src/
  std::vector<std::string> lines;
};

std::vector<SourceFile> source_files(const fs::path& root = kSource) {
  std::vector<SourceFile> files;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh")
      continue;
    files.push_back({fs::relative(entry.path(), root).generic_string(), {}});
    std::ifstream text(entry.path());
    for (std::string line; std::getline(text, line);) files.back().lines.push_back(line);
  }
  return files;
}

// The names that a file includes in the given delimiters: '"' or '<'.
std::vector<std::string> includes_of(const SourceFile& file, char delimiter) {
  static const std::regex directive("^\\s*#\\s*include\\s*([\"<])([^\">]+)[\">].*");
  std::vector<std::string> names;
  std::smatch match;
  for (const std::string& line : file.lines)
    if (std::regex_match(line, match, directive) && match[1].str()[0] == delimiter)
      names.push_back(match[2].str());
  return names;
}

TEST(Architecture, NoArrowPointsUp) {
  int seen = 0;
  for (const SourceFile& file : source_files())
    for (const std::string& included : includes_of(file, '"')) {
      ++seen;
      const std::string wrong = complaint(file.name, included);
      EXPECT_TRUE(wrong.empty()) << "src/" << file.name << " includes " << included << ": "
                                 << wrong;
      EXPECT_TRUE(fs::exists(kSource / included))
          << "src/" << file.name << ": " << included << " is not a path below src/";
    }
  EXPECT_GT(seen, 100) << "the source was not found in " << kSource;
}

// Programs of tools/ stand on src/. The test above finds the opposite.
TEST(Architecture, ToolsIncludeTheSourceAndThemselves) {
  const fs::path tools = fs::path(source_directory()) / "tools";
  int seen = 0;
  for (const SourceFile& file : source_files(tools)) {
    EXPECT_LE(file.lines.size(), 600u) << "tools/" << file.name << " is too long: split it";
    for (const std::string& included : includes_of(file, '"')) {
      ++seen;
      const bool own = included.starts_with(folder_of(file.name) + "/");
      EXPECT_TRUE(fs::exists((own ? tools : kSource) / included))
          << "tools/" << file.name << " includes " << included;
    }
  }
  EXPECT_GT(seen, 20);
}

// Models of other training programs are in tools/plan_accuracy. The configuration knows the names
// of their keys, data/ reads Megatron's files, and `kintsugi model import` the checkpoints of
// others.
TEST(Architecture, OtherProgramsStayOutOfTheSource) {
  const auto named = [](std::string line, const std::vector<std::string>& programs) {
    std::transform(line.begin(), line.end(), line.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return std::any_of(programs.begin(), programs.end(), [&](const std::string& program) {
      return line.find(program) != std::string::npos;
    });
  };
  for (const SourceFile& file : source_files()) {
    if (file.name == "train/config/checks.h" || file.name == "cli/model/merge_command.cpp" ||
        file.name.starts_with("model/import/"))
      continue;
    std::vector<std::string> programs = {"nanotron", "torchtitan", "deepspeed", "llm-foundry",
                                         "mosaicml"};
    if (file.name.starts_with("plan/") || file.name.starts_with("cli/plan/"))
      programs.emplace_back("megatron");
    for (const std::string& line : file.lines)
      EXPECT_FALSE(named(line, programs)) << "src/" << file.name << ": " << line;
  }
}

// Two types of one name in a namespace link without a word, and one of them gets the other's
// functions.
TEST(Architecture, EveryTypeOfAHeaderHasANameOfItsOwn) {
  static const std::regex opens("^namespace ([a-z:]+) \\{.*");
  static const std::regex defines("^(?:class|struct) (\\w+)(?: final)?(?: : [^;]*)? \\{.*");
  std::map<std::string, std::string> places;
  std::smatch match;
  for (const SourceFile& file : source_files()) {
    if (!file.name.ends_with(".h") && !file.name.ends_with(".cuh")) continue;
    std::string space;
    for (const std::string& line : file.lines) {
      if (std::regex_match(line, match, opens)) space = match[1].str();
      if (!std::regex_match(line, match, defines)) continue;
      const auto [other, is_new] = places.emplace(space + "::" + match[1].str(), file.name);
      EXPECT_TRUE(is_new || other->second == file.name)
          << other->first << " is in src/" << other->second << " and in src/" << file.name;
    }
  }
  EXPECT_TRUE(places.contains("kintsugi::HttpServer") && places.contains("kintsugi::Tensor"));
}

TEST(Architecture, TheRulesFindWhatTheyShould) {
  for (const auto& [file, included] : std::vector<std::pair<std::string, std::string>>{
           {"core/file.cpp", "tensor/tensor.h"},
           {"tensor/arena.cpp", "backend/backend.h"},
           {"backend/cpu/adamw.cpp", "model/config.h"},
           {"backend/cpu/adamw.cpp", "backend/gpu/matmul.h"},
           {"backend/tuning_cache.cpp", "backend/gpu/matmul.h"},
           {"model/stage.cpp", "optim/optimizer.h"},
           {"model/stage.cpp", "backend/cpu/cpu_backend.h"},
           {"model/stage.cpp", "backend/tuning_cache.h"},
           {"model/stage.cpp", "comm/nccl/communicator.h"},
           {"comm/nccl/watch.cpp", "backend/gpu/cuda/native.h"},
           {"optim/optimizer.cpp", "train/config/config.h"},
           {"data/sampling/blend.cpp", "model/config.h"},
           {"http/listener.cpp", "report/goodput.h"},
           {"report/dashboard/dashboard_service.cpp", "serve/http/service.h"},
           {"serve/inference_model.cpp", "train/checkpoint/checkpoint.h"},
           {"train/trainer.cpp", "backend/cpu/cpu_backend.h"},
           {"train/trainer.cpp", "cli/backends.h"},
           {"somewhere/new.cpp", "core/file.h"},
       })
    EXPECT_FALSE(complaint(file, included).empty()) << file << " -> " << included;
  for (const auto& [file, included] : std::vector<std::pair<std::string, std::string>>{
           {"cli/backends.cpp", "backend/cpu/cpu_backend.h"},
           {"backend/cpu/adamw.cpp", "backend/cpu/rows.h"},
           {"backend/gpu_missing.cpp", "backend/gpu/gpu_backend.h"},
           {"model/stage.cpp", "backend/backend.h"},
           {"comm/nccl/watch.cpp", "backend/gpu/runtime.h"},
           {"train/trainer.cpp", "data/sampling/batch_loader.h"},
       })
    EXPECT_TRUE(complaint(file, included).empty()) << file << " -> " << included;
}

// Kernels and host code of GPUs are written once; only a vendor's folder has the vendor's names.
// The names in a line of code, without comments and strings. "<<<" counts as one.
std::vector<std::string> names_in(const std::string& line) {
  std::vector<std::string> names;
  const auto letter = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && (i == 0 || line[i - 1] != '\\')) quoted = !quoted;
    if (quoted) continue;
    if (line.compare(i, 2, "//") == 0) break;
    if (line.compare(i, 3, "<<<") == 0) names.emplace_back("<<<");
    if (!letter(line[i]) || (i > 0 && letter(line[i - 1]))) continue;
    std::size_t end = i;
    while (end < line.size() && letter(line[end])) ++end;
    names.push_back(line.substr(i, end - i));
  }
  return names;
}

// Whose a name is: 'c' of CUDA, 'h' of HIP, 'b' of both, 0 of neither.
char vendor_of(const std::string& name) {
  const auto begins = [&](std::string_view start) {
    return name.starts_with(start) && name.size() > start.size();
  };
  const auto upper_after = [&](std::string_view start) {
    return begins(start) && std::isupper(static_cast<unsigned char>(name[start.size()])) != 0;
  };
  if (begins("__shfl_") && name.ends_with("_sync")) return 'c';
  if (name == "__shfl" || begins("__shfl_") || name == "__ballot") return 'b';
  if (upper_after("hip") || begins("rocblas_") || begins("hipblas") || begins("__hip") ||
      begins("__builtin_amdgcn"))
    return 'h';
  if (upper_after("cuda") || begins("cublas") || upper_after("cudnn") || begins("CUDNN_") ||
      begins("CUBLAS") || begins("__nv_") || name == "__half" || name == "__half2" ||
      name == "__syncwarp" || (name.starts_with("__") && name.ends_with("_sync")) || name == "<<<")
    return 'c';
  return 0;
}

TEST(Architecture, VendorNamesStayInTheirFolders) {
  EXPECT_EQ(vendor_of("cudaMalloc"), 'c');
  EXPECT_EQ(vendor_of("__ballot_sync"), 'c');
  EXPECT_EQ(vendor_of("hipMalloc"), 'h');
  EXPECT_EQ(vendor_of("hip"), 0);
  EXPECT_TRUE(names_in("  // cudaMalloc").empty() && names_in("\"cudaMalloc\"").empty());
  EXPECT_EQ(names_in("f<<<1>>>(x);").at(1), "<<<");
  for (const SourceFile& file : source_files()) {
    const bool in_cuda = file.name.starts_with("backend/gpu/cuda/"),
               in_hip = file.name.starts_with("backend/gpu/hip/");
    for (const std::string& line : file.lines)
      for (const std::string& name : names_in(line)) {
        const char vendor = vendor_of(name);
        EXPECT_TRUE(vendor == 0 || (in_cuda && vendor != 'h') || (in_hip && vendor != 'c'))
            << "src/" << file.name << ": " << line;
      }
  }
}

TEST(Architecture, CudaHeadersStayInTheirFolders) {
  const std::regex cuda(
      "^(cuda|cublas|cudnn|nccl|nvml|nvtx|nvToolsExt|curand|cub/|thrust/"
      "|cooperative_groups|mma\\.h).*");
  for (const SourceFile& file : source_files()) {
    if (file.name.starts_with("backend/gpu/cuda/")) continue;
    for (const char delimiter : {'<', '"'})
      for (const std::string& included : includes_of(file, delimiter))
        EXPECT_FALSE(std::regex_match(included, cuda))
            << "src/" << file.name << " includes " << included;
  }
}

// Messages are for people: code decides by types (RankFailure, StopCause, exit codes). This finds
//   - a search in a message where it is read: error.what() or failure.text with find(), contains(),
//     starts_with(), …, a comparison, sscanf, regex or std::stoi;
//   - the same in a variable that was made from a message up to 20 lines above;
//   - a search for a word of the program's own log lines ("error: ", "stopped by ").
// It reads line by line, and does not follow a message into another function.
const char* const kMessage = "(what\\(\\)|failure(\\(\\))?\\.text)";

// `text`: a message or the name of a variable, as a regular expression.
bool searches(const std::string& line, const std::string& text) {
  const std::regex search(
      "\\b" + text + "\\)?(\\.(find|rfind|find_\\w+|contains|starts_with|ends_with|compare)\\(" +
      "|\\s*[!=]=\\s*\")" + "|(sscanf|regex_\\w+|stoi|stoll|strto\\w+)\\([^;]*\\b" + text);
  return std::regex_search(line, search);
}

std::vector<std::string> read_messages(const std::vector<std::string>& lines) {
  static const std::regex made(std::string("(\\w+)(\\(| = |\\{)(std::string\\()?[\\w.>()-]*\\b") +
                               kMessage + "[;)}]");
  static const std::regex own_log("(find|contains|starts_with)\\(\"(error: |stopped by )");
  std::vector<std::string> found;
  std::map<std::string, std::size_t> variables;  // made from a message, and in which line
  std::smatch match;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    const auto has = [&](const std::string& word) { return line.find(word) != std::string::npos; };
    const bool message = has("what()") || has(".text");
    bool reads = (message && searches(line, kMessage)) ||
                 ((has("error: ") || has("stopped by ")) && std::regex_search(line, own_log));
    for (const auto& [name, made_in] : variables)
      reads = reads || (i - made_in <= 20 && has(name) && searches(line, name + "\\b"));
    if (reads) found.push_back(line);
    if (message && std::regex_search(line, match, made)) variables[match[1].str()] = i;
  }
  return found;
}

TEST(Architecture, NoCodeReadsMessages) {
  // They show a message of nlohmann::json without its prefix "[json.exception.…] ".
  const std::set<std::string> prefix_removed = {
      "cli/data/codec_commands.cpp", "model/hf_config.cpp", "serve/http/request_bodies.cpp"};
  for (const SourceFile& file : source_files())
    if (!prefix_removed.contains(file.name)) {
      for (const std::string& line : read_messages(file.lines))
        ADD_FAILURE() << "src/" << file.name << " decides by a message: " << line;
    }
  using Lines = std::vector<std::string>;
  for (const Lines& bad : std::vector<Lines>{
           {"if (std::string(error.what()).find(\"rank\") != npos) return;"},
           {"if (attempt.failure.text.starts_with(\"rank 0\")) return;"},
           {"std::sscanf(error.what(), \"rank %d\", &rank);"},
           {"if (line.find(\"stopped by SIG\") != npos) return true;"},
           {"const std::string text = error.what();", "", "if (text == \"no space\") return;"},
           {"std::string_view why(failure.failure().text);", "const int rank = why.find(':');"}})
    EXPECT_FALSE(read_messages(bad).empty()) << bad.front();
  for (const Lines& good :
       std::vector<Lines>{{"user_error(\"{}: {}\", file, error.what());"},
                          {"const std::string text = error.what();", "log_warning(\"{}\", text);"},
                          {"if (failure.kind == FailureKind::Lost) return failure.text;"}})
    EXPECT_TRUE(read_messages(good).empty()) << good.front();
}

// The data members of each class, by its name: names that end in "_", declared at its own depth.
std::map<std::string, int> members_of_classes(const SourceFile& file) {
  static const std::regex opens("^( *)class (\\w+)(?: final)?(?: : [^;]*)? \\{.*");
  static const std::regex comment("//.*"), arguments("<[^<>]*>"), name("[a-z]\\w*_(?=[ ;,={\\[])");
  std::map<std::string, int> members;
  std::vector<std::pair<std::string, std::size_t>> open;  // the innermost last; its indentation
  std::smatch match;
  for (const std::string& line : file.lines) {
    if (std::regex_match(line, match, opens))
      open.emplace_back(match[2].str(), match[1].str().size());
    if (open.empty()) continue;
    const auto& [inside, indent] = open.back();
    if (line == std::string(indent, ' ') + "};") {
      open.pop_back();
      continue;
    }
    if (line.find_first_not_of(' ') != indent + 2) continue;
    std::string text = std::regex_replace(line, comment, "");
    for (std::string shorter; (shorter = std::regex_replace(text, arguments, "")) != text;)
      text = shorter;
    // Behind a parenthesis there is a function, or the value of a member.
    text = text.substr(0, text.find('('));
    members[inside] +=
        static_cast<int>(std::distance(std::sregex_iterator(text.begin(), text.end(), name), {}));
  }
  return members;
}

// A class with more of them is several classes. Those that are listed may only become smaller.
TEST(Architecture, ClassesHaveFewMembers) {
  const std::map<std::string, int> larger = {{"StepSeries", 34}, {"Sharding", 28}};
  std::map<std::string, int> found;
  for (const SourceFile& file : source_files())
    for (const auto& [name, members] : members_of_classes(file)) {
      const auto listed = larger.find(name);
      const int most = listed == larger.end() ? 25 : listed->second;
      EXPECT_LE(members, most) << name << " in src/" << file.name << ": split it";
      found[name] = std::max(found[name], members);
    }
  EXPECT_EQ(found["RunHealth"], 4) << "the count is wrong";
  for (const auto& [name, members] : larger)
    EXPECT_GT(found[name], 25) << name << " need not be listed any more";
}

TEST(Architecture, FilesHaveOneSubject) {
  for (const SourceFile& file : source_files())
    if (file.name.ends_with(".h") || file.name.ends_with(".cpp")) {
      EXPECT_LE(file.lines.size(), 600u) << "src/" << file.name << " is too long: split it";
    }
}

TEST(Architecture, HeadersAreIncludedOnce) {
  for (const SourceFile& file : source_files())
    if (file.name.ends_with(".h") || file.name.ends_with(".cuh")) {
      EXPECT_EQ(std::count(file.lines.begin(), file.lines.end(), "#pragma once"), 1)
          << "src/" << file.name;
    }
}

}  // namespace
}  // namespace kintsugi
