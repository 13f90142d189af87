#!/usr/bin/env bash
# Compares lm-evaluation-harness's own HTTP client, against kintsugi serve, with kintsugi eval on the files:
#   bench/lm_eval_client.sh CHECKPOINT TASK.yaml…
# Needs lm_eval (https://github.com/EleutherAI/lm-evaluation-harness); LM_EVAL names another command. KINTSUGI is the program.
# MAX_LENGTH (default 2048) is the length of a sequence for all. BATCH and CONCURRENT vary the requests of the client.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,5p' "$0"; exit 2; }
checkpoint=$1; shift
kintsugi=${KINTSUGI:-build/kintsugi} length=${MAX_LENGTH:-2048}
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT

"$kintsugi" serve --checkpoint "$checkpoint" --name served --port 0 --max-length "$length" > "$work/log" &
server=$!
until grep -q '^serving' "$work/log"; do kill -0 "$server" || exit 1; sleep 0.1; done
url=$(sed -n 's/.* at \(http:[^ ]*\): .*/\1/p' "$work/log")

names=() include=() files=()
for task in "$@"; do
  names+=("$(sed -n 's/^\(task\|group\): *//p' "$task" | head -1)")
  include+=("$(dirname "$task")")
  files+=(--tasks "$task")
done
${LM_EVAL:-lm_eval} --model local-completions --tasks "$(IFS=,; echo "${names[*]}")" --include_path "${include[0]}" \
  --batch_size "${BATCH:-4}" --output_path "$work/client" --model_args \
  "base_url=$url/v1/completions,model=served,tokenizer_backend=auto,max_length=$length,num_concurrent=${CONCURRENT:-1}"
"$kintsugi" eval --checkpoint "$checkpoint" "${files[@]}" --max-length "$length" --output "$work/files"

python3 - "$work/client" "$work/files" <<'EOF'
import glob, json, sys
def results(folder):
    files = sorted(glob.glob(folder + "/**/results_*.json", recursive=True))
    return json.load(open(files[-1]))["results"]
client, files = results(sys.argv[1]), results(sys.argv[2])
worst = 0.0
for task, metrics in sorted(client.items()):
    for name, value in sorted(metrics.items()):
        ours = files.get(task, {}).get(name)
        if not isinstance(value, float) or not isinstance(ours, float) or "stderr" in name:
            continue
        worst = max(worst, abs(value - ours) / max(1.0, abs(value)))
        print(f"{task:32} {name:24} client {value:.9f}  files {ours:.9f}")
print(f"largest difference {worst:.2e}")
sys.exit(worst > 1e-6)
EOF
