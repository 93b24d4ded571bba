// SPDX-License-Identifier: Apache-2.0
/**
 * What `--help` says of the command and of each subcommand, by the names before it, for a terminal with colors. Written
 * by `node scripts/help-texts.ts` from what the command itself renders; a test compares both.
 */
export const helpTexts: Readonly<Record<string, string>> = {
  "": `\u001b[1mDESCRIPTION\u001b[0m
  Move model weights between parallel layouts

\u001b[1mUSAGE\u001b[0m
  \u001b[36mtensorferry <subcommand> [flags]\u001b[0m

\u001b[1mGLOBAL FLAGS\u001b[0m
  \u001b[32m--help\u001b[0m, \u001b[32m-h\u001b[0m                                                          Show help information
  \u001b[32m--version\u001b[0m, \u001b[32m-v\u001b[0m                                                       Show version information
  \u001b[32m--wizard\u001b[0m                                                            Start wizard mode for a command
  \u001b[32m--completions\u001b[0m \u001b[2m<bash|zsh|fish|powershell|sh|pwsh>\u001b[0m                    Print shell completion script (choices: bash, zsh, fish, powershell, sh, pwsh)
  \u001b[32m--log-level\u001b[0m \u001b[2m<all|trace|debug|info|warn|warning|error|fatal|none>\u001b[0m    Sets the minimum log level (choices: all, trace, debug, info, warn, warning, error, fatal, none)

\u001b[1mSUBCOMMANDS\u001b[0m
  \u001b[36mreshard\u001b[0m     Reshard a checkpoint from one parallel layout to another, or one of its tensors between device meshes, one process per rank, and prove the result
  \u001b[36mplan\u001b[0m        Show what a reshard of a checkpoint, or of one tensor between device meshes, would move: traffic matrix, bytes, memory and predicted time
  \u001b[36mreport\u001b[0m      Show a record of a run as one HTML page: traffic, timeline, memory, parameters
  \u001b[36mverify\u001b[0m      Compare two models tensor by tensor, bit by bit or within a tolerance, whatever their layouts; exit code 1 where they differ
  \u001b[36mreplay\u001b[0m      Feed replay batches from a collector process to a learner's device
  \u001b[36mbench\u001b[0m       Measure what a backend moves between processes, beside plain copies in memory
  \u001b[36mbackends\u001b[0m    List backends, what they find or miss on this machine, and judge one by the conformance kit
  \u001b[36mdoctor\u001b[0m      Inspect the machine and every backend, with remedies
  \u001b[36magent\u001b[0m       Serve one rank of the tensor bus: processes hand it tensors, it exchanges them with other agents`,
  reshard: `\u001b[1mDESCRIPTION\u001b[0m
  Reshard a checkpoint from one parallel layout to another, or one of its tensors between device meshes, one process per rank, and prove the result

\u001b[1mUSAGE\u001b[0m
  \u001b[36mtensorferry reshard [flags] <CHECKPOINT>\u001b[0m

\u001b[1mARGUMENTS\u001b[0m
  \u001b[32mCHECKPOINT\u001b[0m \u001b[2mstring\u001b[0m    A .safetensors file, a folder of them, a folder written by reshard, or synthetic:SHAPES.json.gz for made-up data

\u001b[1mFLAGS\u001b[0m
  \u001b[32m--from\u001b[0m \u001b[2mstring\u001b[0m               Source layout, as tp=2,pp=1; by default that of the folder's manifest, else tp=1
  \u001b[32m--to\u001b[0m \u001b[2mstring\u001b[0m                 Destination layout: tp=, pp=, dp=, and for experts ep= and etp=, as in tp=4,dp=2,ep=8
  \u001b[32m--layout\u001b[0m \u001b[2mstring\u001b[0m             YAML or JSON file with both layouts and how tensors are cut; flags override it
  \u001b[32m--ranks\u001b[0m \u001b[2mchoice\u001b[0m              Whether both layouts share their ranks (the default) or the destination has ranks of its own (choices: collocated, disjoint)
  \u001b[32m--rules\u001b[0m \u001b[2mstring\u001b[0m              YAML or JSON file that says how tensors are sharded
  \u001b[32m--preset\u001b[0m \u001b[2mchoice\u001b[0m             Rules of a model family; by default that of the checkpoint's config.json (choices: llama, mistral, qwen, qwen2, qwen3, qwen3_moe, qwen3_5_moe, qwen3_5_moe_text, mixtral, granitemoe, deepseek_v3)
  \u001b[32m--kv-heads\u001b[0m \u001b[2mchoice\u001b[0m           With more ranks than key-value heads: give each rank a whole head, or cut heads by rows (choices: replicate, rows)
  \u001b[32m--default\u001b[0m \u001b[2mchoice\u001b[0m            What to do with tensors that no rule matches, instead of refusing them (choices: replicate)
  \u001b[32m--tensor\u001b[0m \u001b[2mstring\u001b[0m             Tensor of the checkpoint that is moved between device meshes
  \u001b[32m--from-mesh\u001b[0m \u001b[2mstring\u001b[0m          Source mesh and placements, as in 2x4:S0,R: R replicate, S0 shard dimension 0, SS(0,2) strided, P(sum) partial
  \u001b[32m--to-mesh\u001b[0m \u001b[2mstring\u001b[0m            Destination mesh; ranks count up from 0 on both sides unless stated, as in 8@8:S1 or 4@3,1,0,2:R
  \u001b[32m--source-choice\u001b[0m \u001b[2mchoice\u001b[0m      Which of several holders of a shard serves whom (balanced by default) (choices: balanced, etha)
  \u001b[32m--bucket-bytes\u001b[0m \u001b[2minteger\u001b[0m      Most bytes of a bucket with more than one chunk (by default 32 MiB in plans; in transfers, what free memory and the link suggest)
  \u001b[32m--backend\u001b[0m \u001b[2mstring\u001b[0m            Backend that moves the bytes, or auto
  \u001b[32m--backend-package\u001b[0m \u001b[2mstring\u001b[0m    Package to load more backends from (repeatable); it is imported from the current folder
  \u001b[32m--transform\u001b[0m \u001b[2mstring\u001b[0m          Quantize matrices on the way: mxfp8[:ocp_floor|rceil|rceil_te][:sender|receiver]; data under its name, scales under NAME_scale
  \u001b[32m--dtype\u001b[0m \u001b[2mchoice\u001b[0m              Element type that other floats end in; by default their own (choices: float32, bfloat16, float16, float8_e4m3fn, float8_e5m2)
  \u001b[32m--out\u001b[0m \u001b[2mstring\u001b[0m                Folder for the destination shards and their manifest; without it the result is only proved
  \u001b[32m--verify\u001b[0m                    Compare every destination shard with the checkpoint (on by default; --no-verify skips it)
  \u001b[32m--trace\u001b[0m \u001b[2mstring\u001b[0m              File for a timeline of all ranks that Perfetto and Chrome show
  \u001b[32m--record\u001b[0m \u001b[2mstring\u001b[0m             File for a record of the run that tensorferry report shows
  \u001b[32m--deadline\u001b[0m \u001b[2mnumber\u001b[0m           Seconds without progress after which a rank is given up (TENSORFERRY_DEADLINE, else 60)
  \u001b[32m--json\u001b[0m                      Print one JSON document on standard output instead of tables

\u001b[1mGLOBAL FLAGS\u001b[0m
  \u001b[32m--help\u001b[0m, \u001b[32m-h\u001b[0m                                                          Show help information
  \u001b[32m--version\u001b[0m, \u001b[32m-v\u001b[0m                                                       Show version information
  \u001b[32m--wizard\u001b[0m                                                            Start wizard mode for a command
  \u001b[32m--completions\u001b[0m \u001b[2m<bash|zsh|fish|powershell|sh|pwsh>\u001b[0m                    Print shell completion script (choices: bash, zsh, fish, powershell, sh, pwsh)
  \u001b[32m--log-level\u001b[0m \u001b[2m<all|trace|debug|info|warn|warning|error|fatal|none>\u001b[0m    Sets the minimum log level (choices: all, trace, debug, info, warn, warning, error, fatal, none)

\u001b[1mEXAMPLES\u001b[0m
  \u001b[2m# Prove a move\u001b[0m
  \u001b[36mtensorferry reshard model.safetensors --from tp=2 --to tp=4,pp=2 --rules rules.yaml\u001b[0m

  \u001b[2m# Write shards\u001b[0m
  \u001b[36mtensorferry reshard llama/ --preset llama --from tp=1 --to tp=2 --out shards/\u001b[0m

  \u001b[2m# And back to one file\u001b[0m
  \u001b[36mtensorferry reshard shards/ --to tp=1 --out whole/\u001b[0m

  \u001b[2m# Quantized on the way\u001b[0m
  \u001b[36mtensorferry reshard llama/ --preset llama --from tp=1 --to tp=2 --transform mxfp8:rceil:sender --out fp8/\u001b[0m

  \u001b[2m# Experts on ranks of their own, the preset from config.json\u001b[0m
  \u001b[36mtensorferry reshard qwen3-moe/ --from tp=2,dp=2,ep=4 --to tp=4 --ranks disjoint\u001b[0m

  \u001b[2m# Real shapes, made-up data\u001b[0m
  \u001b[36mtensorferry reshard synthetic:shapes.json.gz --preset llama --from tp=2 --to tp=4\u001b[0m

  \u001b[2m# Keep a timeline for ui.perfetto.dev, and a record for tensorferry report\u001b[0m
  \u001b[36mtensorferry reshard llama/ --to tp=4 --trace reshard.trace.json --record run.json\u001b[0m

  \u001b[2m# One tensor between device meshes\u001b[0m
  \u001b[36mtensorferry reshard model.safetensors --tensor lm_head.weight --from-mesh 2x2:S0,R --to-mesh 3@4:S1\u001b[0m`,
  plan: `\u001b[1mDESCRIPTION\u001b[0m
  Show what a reshard of a checkpoint, or of one tensor between device meshes, would move: traffic matrix, bytes, memory and predicted time

\u001b[1mUSAGE\u001b[0m
  \u001b[36mtensorferry plan <subcommand> [flags] [<CHECKPOINT>]\u001b[0m

\u001b[1mARGUMENTS\u001b[0m
  \u001b[32mCHECKPOINT\u001b[0m \u001b[2mstring\u001b[0m    A .safetensors file, a folder of them, a folder written by reshard, or synthetic:SHAPES.json.gz for made-up data\u001b[2m (optional)\u001b[0m

\u001b[1mFLAGS\u001b[0m
  \u001b[32m--from\u001b[0m \u001b[2mstring\u001b[0m             Source layout, as tp=2,pp=1; by default that of the folder's manifest, else tp=1
  \u001b[32m--to\u001b[0m \u001b[2mstring\u001b[0m               Destination layout: tp=, pp=, dp=, and for experts ep= and etp=, as in tp=4,dp=2,ep=8
  \u001b[32m--layout\u001b[0m \u001b[2mstring\u001b[0m           YAML or JSON file with both layouts and how tensors are cut; flags override it
  \u001b[32m--ranks\u001b[0m \u001b[2mchoice\u001b[0m            Whether both layouts share their ranks (the default) or the destination has ranks of its own (choices: collocated, disjoint)
  \u001b[32m--rules\u001b[0m \u001b[2mstring\u001b[0m            YAML or JSON file that says how tensors are sharded
  \u001b[32m--preset\u001b[0m \u001b[2mchoice\u001b[0m           Rules of a model family; by default that of the checkpoint's config.json (choices: llama, mistral, qwen, qwen2, qwen3, qwen3_moe, qwen3_5_moe, qwen3_5_moe_text, mixtral, granitemoe, deepseek_v3)
  \u001b[32m--kv-heads\u001b[0m \u001b[2mchoice\u001b[0m         With more ranks than key-value heads: give each rank a whole head, or cut heads by rows (choices: replicate, rows)
  \u001b[32m--default\u001b[0m \u001b[2mchoice\u001b[0m          What to do with tensors that no rule matches, instead of refusing them (choices: replicate)
  \u001b[32m--from-mesh\u001b[0m \u001b[2mstring\u001b[0m        Source mesh and placements, as in 2x4:S0,R: R replicate, S0 shard dimension 0, SS(0,2) strided, P(sum) partial
  \u001b[32m--to-mesh\u001b[0m \u001b[2mstring\u001b[0m          Destination mesh; ranks count up from 0 on both sides unless stated, as in 8@8:S1 or 4@3,1,0,2:R
  \u001b[32m--source-choice\u001b[0m \u001b[2mchoice\u001b[0m    Which of several holders of a shard serves whom (balanced by default) (choices: balanced, etha)
  \u001b[32m--bucket-bytes\u001b[0m \u001b[2minteger\u001b[0m    Most bytes of a bucket with more than one chunk (by default 32 MiB in plans; in transfers, what free memory and the link suggest)
  \u001b[32m--shape\u001b[0m \u001b[2mstring\u001b[0m            Shape of the whole tensor on the meshes, as in 4096x4096
  \u001b[32m--dtype\u001b[0m \u001b[2mstring\u001b[0m            Element type of the tensor on the meshes (bfloat16 by default)
  \u001b[32m--to-dtype\u001b[0m \u001b[2mstring\u001b[0m         Element type of the destination on the meshes, where it is another
  \u001b[32m--save\u001b[0m \u001b[2mstring\u001b[0m             Write all ranks' plans to this file
  \u001b[32m--explain\u001b[0m \u001b[2minteger\u001b[0m         Say in words what this rank sends, receives and copies, instead of the figures of all ranks
  \u001b[32m--json\u001b[0m                    Print one JSON document on standard output instead of tables

\u001b[1mGLOBAL FLAGS\u001b[0m
  \u001b[32m--help\u001b[0m, \u001b[32m-h\u001b[0m                                                          Show help information
  \u001b[32m--version\u001b[0m, \u001b[32m-v\u001b[0m                                                       Show version information
  \u001b[32m--wizard\u001b[0m                                                            Start wizard mode for a command
  \u001b[32m--completions\u001b[0m \u001b[2m<bash|zsh|fish|powershell|sh|pwsh>\u001b[0m                    Print shell completion script (choices: bash, zsh, fish, powershell, sh, pwsh)
  \u001b[32m--log-level\u001b[0m \u001b[2m<all|trace|debug|info|warn|warning|error|fatal|none>\u001b[0m    Sets the minimum log level (choices: all, trace, debug, info, warn, warning, error, fatal, none)

\u001b[1mSUBCOMMANDS\u001b[0m
  \u001b[36mcheck\u001b[0m    Prove a saved plan: coverage, regions, and agreement of both ends
\u001b[1mEXAMPLES\u001b[0m
  \u001b[2m# Traffic matrix\u001b[0m
  \u001b[36mtensorferry plan llama/ --preset llama --from tp=8 --to tp=4,pp=2\u001b[0m

  \u001b[2m# Save all ranks' plans\u001b[0m
  \u001b[36mtensorferry plan llama/ --preset llama --to tp=4 --save plan.json\u001b[0m

  \u001b[2m# A tensor from one device mesh to another\u001b[0m
  \u001b[36mtensorferry plan --from-mesh 2x4:S0,R --to-mesh 8@8:S1 --shape 4096x4096\u001b[0m

  \u001b[2m# What rank 3 does, in words\u001b[0m
  \u001b[36mtensorferry plan --from-mesh '2x4:P(sum),S0' --to-mesh 8:S1 --shape 4096x4096 --explain 3\u001b[0m

  \u001b[2m# Prove a saved plan\u001b[0m
  \u001b[36mtensorferry plan check plan.json\u001b[0m`,
  "plan check": `\u001b[1mDESCRIPTION\u001b[0m
  Prove a saved plan: coverage, regions, and agreement of both ends

\u001b[1mUSAGE\u001b[0m
  \u001b[36mtensorferry plan check [flags] <FILE>\u001b[0m

\u001b[1mARGUMENTS\u001b[0m
  \u001b[32mFILE\u001b[0m \u001b[2mstring\u001b[0m    What plan --save wrote

\u001b[1mFLAGS\u001b[0m
  \u001b[32m--json\u001b[0m    Print one JSON document on standard output instead of tables

\u001b[1mGLOBAL FLAGS\u001b[0m
  \u001b[32m--help\u001b[0m, \u001b[32m-h\u001b[0m                                                          Show help information
  \u001b[32m--version\u001b[0m, \u001b[32m-v\u001b[0m                                                       Show version information
  \u001b[32m--wizard\u001b[0m                                                            Start wizard mode for a command
  \u001b[32m--completions\u001b[0m \u001b[2m<bash|zsh|fish|powershell|sh|pwsh>\u001b[0m                    Print shell completion script (choices: bash, zsh, fish, powershell, sh, pwsh)
  \u001b[32m--log-level\u001b[0m \u001b[2m<all|trace|debug|info|warn|warning|error|fatal|none>\u001b[0m    Sets the minimum log level (choices: all, trace, debug, info, warn, warning, error, fatal, none)`,
  report: `\u001b[1mDESCRIPTION\u001b[0m
  Show a record of a run as one HTML page: traffic, timeline, memory, parameters

\u001b[1mUSAGE\u001b[0m
  \u001b[36mtensorferry report [flags] <RUN>\u001b[0m

\u001b[1mARGUMENTS\u001b[0m
  \u001b[32mRUN\u001b[0m \u001b[2mstring\u001b[0m    What reshard --record wrote

\u001b[1mFLAGS\u001b[0m
  \u001b[32m--out\u001b[0m \u001b[2mstring\u001b[0m    File for the page; by default the record's name with .html
  \u001b[32m--json\u001b[0m          Print one JSON document on standard output instead of tables

\u001b[1mGLOBAL FLAGS\u001b[0m
  \u001b[32m--help\u001b[0m, \u001b[32m-h\u001b[0m                                                          Show help information
  \u001b[32m--version\u001b[0m, \u001b[32m-v\u001b[0m                                                       Show version information
  \u001b[32m--wizard\u001b[0m                                                            Start wizard mode for a command
  \u001b[32m--completions\u001b[0m \u001b[2m<bash|zsh|fish|powershell|sh|pwsh>\u001b[0m                    Print shell completion script (choices: bash, zsh, fish, powershell, sh, pwsh)
  \u001b[32m--log-level\u001b[0m \u001b[2m<all|trace|debug|info|warn|warning|error|fatal|none>\u001b[0m    Sets the minimum log level (choices: all, trace, debug, info, warn, warning, error, fatal, none)

\u001b[1mEXAMPLES\u001b[0m
  \u001b[2m# Write run.html beside it\u001b[0m
  \u001b[36mtensorferry report run.json\u001b[0m

  \u001b[2m# Write it elsewhere\u001b[0m
  \u001b[36mtensorferry report run.json --out /tmp/run.html\u001b[0m`,
  verify: `\u001b[1mDESCRIPTION\u001b[0m
  Compare two models tensor by tensor, bit by bit or within a tolerance, whatever their layouts; exit code 1 where they differ

\u001b[1mUSAGE\u001b[0m
  \u001b[36mtensorferry verify [flags] <A> <B>\u001b[0m

\u001b[1mARGUMENTS\u001b[0m
  \u001b[32mA\u001b[0m \u001b[2mstring\u001b[0m    A model in any form that reshard reads: a .safetensors file, a folder of them, shards
  \u001b[32mB\u001b[0m \u001b[2mstring\u001b[0m    The model that it is compared with, in the same or another form

\u001b[1mFLAGS\u001b[0m
  \u001b[32m--tolerance\u001b[0m \u001b[2mnumber\u001b[0m    Compare values, not bytes: types may differ, NAME with NAME_scale is dequantized, and values may differ by this part of the largest of their block of 32
  \u001b[32m--json\u001b[0m                Print one JSON document on standard output instead of tables

\u001b[1mGLOBAL FLAGS\u001b[0m
  \u001b[32m--help\u001b[0m, \u001b[32m-h\u001b[0m                                                          Show help information
  \u001b[32m--version\u001b[0m, \u001b[32m-v\u001b[0m                                                       Show version information
  \u001b[32m--wizard\u001b[0m                                                            Start wizard mode for a command
  \u001b[32m--completions\u001b[0m \u001b[2m<bash|zsh|fish|powershell|sh|pwsh>\u001b[0m                    Print shell completion script (choices: bash, zsh, fish, powershell, sh, pwsh)
  \u001b[32m--log-level\u001b[0m \u001b[2m<all|trace|debug|info|warn|warning|error|fatal|none>\u001b[0m    Sets the minimum log level (choices: all, trace, debug, info, warn, warning, error, fatal, none)

\u001b[1mEXAMPLES\u001b[0m
  \u001b[2m# A file and its shards\u001b[0m
  \u001b[36mtensorferry verify model.safetensors shards/\u001b[0m

  \u001b[2m# Before and after quantizing\u001b[0m
  \u001b[36mtensorferry verify model.safetensors fp8/ --tolerance 0.07\u001b[0m`,
  replay: `\u001b[1mDESCRIPTION\u001b[0m
  Feed replay batches from a collector process to a learner's device

\u001b[1mUSAGE\u001b[0m
  \u001b[36mtensorferry replay <subcommand> [flags]\u001b[0m

\u001b[1mGLOBAL FLAGS\u001b[0m
  \u001b[32m--help\u001b[0m, \u001b[32m-h\u001b[0m                                                          Show help information
  \u001b[32m--version\u001b[0m, \u001b[32m-v\u001b[0m                                                       Show version information
  \u001b[32m--wizard\u001b[0m                                                            Start wizard mode for a command
  \u001b[32m--completions\u001b[0m \u001b[2m<bash|zsh|fish|powershell|sh|pwsh>\u001b[0m                    Print shell completion script (choices: bash, zsh, fish, powershell, sh, pwsh)
  \u001b[32m--log-level\u001b[0m \u001b[2m<all|trace|debug|info|warn|warning|error|fatal|none>\u001b[0m    Sets the minimum log level (choices: all, trace, debug, info, warn, warning, error, fatal, none)

\u001b[1mSUBCOMMANDS\u001b[0m
  \u001b[36mbench\u001b[0m    Measure throughput, stall and overlap of batches on their way to a device
  \u001b[36mdemo\u001b[0m     The same, and check every row of every batch against what the collector wrote`,
  "replay bench": `\u001b[1mDESCRIPTION\u001b[0m
  Measure throughput, stall and overlap of batches on their way to a device

\u001b[1mUSAGE\u001b[0m
  \u001b[36mtensorferry replay bench [flags]\u001b[0m

\u001b[1mFLAGS\u001b[0m
  \u001b[32m--device\u001b[0m \u001b[2mstring\u001b[0m             Where batches go: cpu, cuda:0, xpu:0 (cpu by default)
  \u001b[32m--rows\u001b[0m \u001b[2minteger\u001b[0m              Rows of a batch (4096 by default)
  \u001b[32m--width\u001b[0m \u001b[2minteger\u001b[0m             Numbers (float32) in the observation of a row (256 by default)
  \u001b[32m--ring\u001b[0m \u001b[2minteger\u001b[0m              Slots that batches rotate through: 1 without overlap, 2 hot and cold, more ahead (2 by default)
  \u001b[32m--capacity\u001b[0m \u001b[2minteger\u001b[0m          Rows that the replay holds; by default four batches
  \u001b[32m--append\u001b[0m \u001b[2minteger\u001b[0m            New rows that the collector appends per batch; by default a quarter of it
  \u001b[32m--seed\u001b[0m \u001b[2minteger\u001b[0m              Fixes which rows each batch holds (0 by default)
  \u001b[32m--compute\u001b[0m \u001b[2mnumber\u001b[0m            Milliseconds that the learner works on each batch (20 by default)
  \u001b[32m--trace\u001b[0m \u001b[2mstring\u001b[0m              File for a trace of packs, copies and waits that Perfetto and Chrome show
  \u001b[32m--deadline\u001b[0m \u001b[2mnumber\u001b[0m           Seconds without progress after which the command fails
  \u001b[32m--backend-package\u001b[0m \u001b[2mstring\u001b[0m    Package to load more backends from (repeatable); it is imported from the current folder
  \u001b[32m--json\u001b[0m                      Print one JSON document on standard output instead of tables
  \u001b[32m--ticks\u001b[0m \u001b[2minteger\u001b[0m             Batches to take (100 by default)

\u001b[1mGLOBAL FLAGS\u001b[0m
  \u001b[32m--help\u001b[0m, \u001b[32m-h\u001b[0m                                                          Show help information
  \u001b[32m--version\u001b[0m, \u001b[32m-v\u001b[0m                                                       Show version information
  \u001b[32m--wizard\u001b[0m                                                            Start wizard mode for a command
  \u001b[32m--completions\u001b[0m \u001b[2m<bash|zsh|fish|powershell|sh|pwsh>\u001b[0m                    Print shell completion script (choices: bash, zsh, fish, powershell, sh, pwsh)
  \u001b[32m--log-level\u001b[0m \u001b[2m<all|trace|debug|info|warn|warning|error|fatal|none>\u001b[0m    Sets the minimum log level (choices: all, trace, debug, info, warn, warning, error, fatal, none)

\u001b[1mEXAMPLES\u001b[0m
  \u001b[2m# To host memory, with the defaults\u001b[0m
  \u001b[36mtensorferry replay bench\u001b[0m

  \u001b[2m# To a GPU, with a trace for ui.perfetto.dev\u001b[0m
  \u001b[36mtensorferry replay bench --device cuda:0 --rows 16384 --width 1024 --trace replay.json\u001b[0m`,
  "replay demo": `\u001b[1mDESCRIPTION\u001b[0m
  The same, and check every row of every batch against what the collector wrote

\u001b[1mUSAGE\u001b[0m
  \u001b[36mtensorferry replay demo [flags]\u001b[0m

\u001b[1mFLAGS\u001b[0m
  \u001b[32m--device\u001b[0m \u001b[2mstring\u001b[0m             Where batches go: cpu, cuda:0, xpu:0 (cpu by default)
  \u001b[32m--rows\u001b[0m \u001b[2minteger\u001b[0m              Rows of a batch (4096 by default)
  \u001b[32m--width\u001b[0m \u001b[2minteger\u001b[0m             Numbers (float32) in the observation of a row (256 by default)
  \u001b[32m--ring\u001b[0m \u001b[2minteger\u001b[0m              Slots that batches rotate through: 1 without overlap, 2 hot and cold, more ahead (2 by default)
  \u001b[32m--capacity\u001b[0m \u001b[2minteger\u001b[0m          Rows that the replay holds; by default four batches
  \u001b[32m--append\u001b[0m \u001b[2minteger\u001b[0m            New rows that the collector appends per batch; by default a quarter of it
  \u001b[32m--seed\u001b[0m \u001b[2minteger\u001b[0m              Fixes which rows each batch holds (0 by default)
  \u001b[32m--compute\u001b[0m \u001b[2mnumber\u001b[0m            Milliseconds that the learner works on each batch (20 by default)
  \u001b[32m--trace\u001b[0m \u001b[2mstring\u001b[0m              File for a trace of packs, copies and waits that Perfetto and Chrome show
  \u001b[32m--deadline\u001b[0m \u001b[2mnumber\u001b[0m           Seconds without progress after which the command fails
  \u001b[32m--backend-package\u001b[0m \u001b[2mstring\u001b[0m    Package to load more backends from (repeatable); it is imported from the current folder
  \u001b[32m--json\u001b[0m                      Print one JSON document on standard output instead of tables
  \u001b[32m--ticks\u001b[0m \u001b[2minteger\u001b[0m             Batches to take (20 by default)

\u001b[1mGLOBAL FLAGS\u001b[0m
  \u001b[32m--help\u001b[0m, \u001b[32m-h\u001b[0m                                                          Show help information
  \u001b[32m--version\u001b[0m, \u001b[32m-v\u001b[0m                                                       Show version information
  \u001b[32m--wizard\u001b[0m                                                            Start wizard mode for a command
  \u001b[32m--completions\u001b[0m \u001b[2m<bash|zsh|fish|powershell|sh|pwsh>\u001b[0m                    Print shell completion script (choices: bash, zsh, fish, powershell, sh, pwsh)
  \u001b[32m--log-level\u001b[0m \u001b[2m<all|trace|debug|info|warn|warning|error|fatal|none>\u001b[0m    Sets the minimum log level (choices: all, trace, debug, info, warn, warning, error, fatal, none)

\u001b[1mEXAMPLES\u001b[0m
  \u001b[2m# Small batches, two prepared ahead\u001b[0m
  \u001b[36mtensorferry replay demo --rows 64 --ring 3\u001b[0m`,
  bench: `\u001b[1mDESCRIPTION\u001b[0m
  Measure what a backend moves between processes, beside plain copies in memory

\u001b[1mUSAGE\u001b[0m
  \u001b[36mtensorferry bench [flags]\u001b[0m

\u001b[1mFLAGS\u001b[0m
  \u001b[32m--backend\u001b[0m \u001b[2mstring\u001b[0m            Backend that moves the bytes, or auto
  \u001b[32m--ranks\u001b[0m \u001b[2minteger\u001b[0m             Processes; each sends to the next one and receives from the one before (2 by default)
  \u001b[32m--bytes\u001b[0m \u001b[2mstring\u001b[0m              Bytes of a message, as 4096, 64KiB, 256MiB (repeatable); by default 8 bytes to 64MiB
  \u001b[32m--options\u001b[0m \u001b[2mstring\u001b[0m            The backend's own options as JSON, as {"threads": 2}
  \u001b[32m--backend-package\u001b[0m \u001b[2mstring\u001b[0m    Package to load more backends from (repeatable); it is imported from the current folder
  \u001b[32m--json\u001b[0m                      Print one JSON document on standard output instead of tables

\u001b[1mGLOBAL FLAGS\u001b[0m
  \u001b[32m--help\u001b[0m, \u001b[32m-h\u001b[0m                                                          Show help information
  \u001b[32m--version\u001b[0m, \u001b[32m-v\u001b[0m                                                       Show version information
  \u001b[32m--wizard\u001b[0m                                                            Start wizard mode for a command
  \u001b[32m--completions\u001b[0m \u001b[2m<bash|zsh|fish|powershell|sh|pwsh>\u001b[0m                    Print shell completion script (choices: bash, zsh, fish, powershell, sh, pwsh)
  \u001b[32m--log-level\u001b[0m \u001b[2m<all|trace|debug|info|warn|warning|error|fatal|none>\u001b[0m    Sets the minimum log level (choices: all, trace, debug, info, warn, warning, error, fatal, none)

\u001b[1mEXAMPLES\u001b[0m
  \u001b[2m# The backend that auto chooses, two processes\u001b[0m
  \u001b[36mtensorferry bench\u001b[0m

  \u001b[2m# Eight devices\u001b[0m
  \u001b[36mtensorferry bench --backend nccl --ranks 8 --bytes 1MiB --bytes 1GiB\u001b[0m`,
  backends: `\u001b[1mDESCRIPTION\u001b[0m
  List backends, what they find or miss on this machine, and judge one by the conformance kit

\u001b[1mUSAGE\u001b[0m
  \u001b[36mtensorferry backends <subcommand> [flags]\u001b[0m

\u001b[1mFLAGS\u001b[0m
  \u001b[32m--backend-package\u001b[0m \u001b[2mstring\u001b[0m    Package to load more backends from (repeatable); it is imported from the current folder
  \u001b[32m--json\u001b[0m                      Print one JSON document on standard output instead of tables

\u001b[1mGLOBAL FLAGS\u001b[0m
  \u001b[32m--help\u001b[0m, \u001b[32m-h\u001b[0m                                                          Show help information
  \u001b[32m--version\u001b[0m, \u001b[32m-v\u001b[0m                                                       Show version information
  \u001b[32m--wizard\u001b[0m                                                            Start wizard mode for a command
  \u001b[32m--completions\u001b[0m \u001b[2m<bash|zsh|fish|powershell|sh|pwsh>\u001b[0m                    Print shell completion script (choices: bash, zsh, fish, powershell, sh, pwsh)
  \u001b[32m--log-level\u001b[0m \u001b[2m<all|trace|debug|info|warn|warning|error|fatal|none>\u001b[0m    Sets the minimum log level (choices: all, trace, debug, info, warn, warning, error, fatal, none)

\u001b[1mSUBCOMMANDS\u001b[0m
  \u001b[36mlist\u001b[0m           List backends, whether they work on this machine, and what is missing
  \u001b[36mprobe\u001b[0m          Everything that a backend finds or misses on this machine; exit code 1 where the named one cannot work
  \u001b[36moptions\u001b[0m        The options that a backend takes: name, values, default and what each does
  \u001b[36mconformance\u001b[0m    Judge a backend by every case of the conformance kit; exit code 1 where one fails
\u001b[1mEXAMPLES\u001b[0m
  \u001b[2m# The same as backends list\u001b[0m
  \u001b[36mtensorferry backends\u001b[0m

  \u001b[2m# What one of them looked for, and where\u001b[0m
  \u001b[36mtensorferry backends probe cuda\u001b[0m

  \u001b[2m# What can be given as --options\u001b[0m
  \u001b[36mtensorferry backends options torch-copy\u001b[0m

  \u001b[2m# Whether one keeps the contract\u001b[0m
  \u001b[36mtensorferry backends conformance torch-copy\u001b[0m`,
  "backends list": `\u001b[1mDESCRIPTION\u001b[0m
  List backends, whether they work on this machine, and what is missing

\u001b[1mUSAGE\u001b[0m
  \u001b[36mtensorferry backends list [flags]\u001b[0m

\u001b[1mFLAGS\u001b[0m
  \u001b[32m--backend-package\u001b[0m \u001b[2mstring\u001b[0m    Package to load more backends from (repeatable); it is imported from the current folder
  \u001b[32m--json\u001b[0m                      Print one JSON document on standard output instead of tables

\u001b[1mGLOBAL FLAGS\u001b[0m
  \u001b[32m--help\u001b[0m, \u001b[32m-h\u001b[0m                                                          Show help information
  \u001b[32m--version\u001b[0m, \u001b[32m-v\u001b[0m                                                       Show version information
  \u001b[32m--wizard\u001b[0m                                                            Start wizard mode for a command
  \u001b[32m--completions\u001b[0m \u001b[2m<bash|zsh|fish|powershell|sh|pwsh>\u001b[0m                    Print shell completion script (choices: bash, zsh, fish, powershell, sh, pwsh)
  \u001b[32m--log-level\u001b[0m \u001b[2m<all|trace|debug|info|warn|warning|error|fatal|none>\u001b[0m    Sets the minimum log level (choices: all, trace, debug, info, warn, warning, error, fatal, none)`,
  "backends probe": `\u001b[1mDESCRIPTION\u001b[0m
  Everything that a backend finds or misses on this machine; exit code 1 where the named one cannot work

\u001b[1mUSAGE\u001b[0m
  \u001b[36mtensorferry backends probe [flags] [<NAME>]\u001b[0m

\u001b[1mARGUMENTS\u001b[0m
  \u001b[32mNAME\u001b[0m \u001b[2mstring\u001b[0m    One backend; all by default\u001b[2m (optional)\u001b[0m

\u001b[1mFLAGS\u001b[0m
  \u001b[32m--backend-package\u001b[0m \u001b[2mstring\u001b[0m    Package to load more backends from (repeatable); it is imported from the current folder
  \u001b[32m--json\u001b[0m                      Print one JSON document on standard output instead of tables

\u001b[1mGLOBAL FLAGS\u001b[0m
  \u001b[32m--help\u001b[0m, \u001b[32m-h\u001b[0m                                                          Show help information
  \u001b[32m--version\u001b[0m, \u001b[32m-v\u001b[0m                                                       Show version information
  \u001b[32m--wizard\u001b[0m                                                            Start wizard mode for a command
  \u001b[32m--completions\u001b[0m \u001b[2m<bash|zsh|fish|powershell|sh|pwsh>\u001b[0m                    Print shell completion script (choices: bash, zsh, fish, powershell, sh, pwsh)
  \u001b[32m--log-level\u001b[0m \u001b[2m<all|trace|debug|info|warn|warning|error|fatal|none>\u001b[0m    Sets the minimum log level (choices: all, trace, debug, info, warn, warning, error, fatal, none)`,
  "backends options": `\u001b[1mDESCRIPTION\u001b[0m
  The options that a backend takes: name, values, default and what each does

\u001b[1mUSAGE\u001b[0m
  \u001b[36mtensorferry backends options [flags] <NAME>\u001b[0m

\u001b[1mARGUMENTS\u001b[0m
  \u001b[32mNAME\u001b[0m \u001b[2mstring\u001b[0m    The backend, as torch-copy

\u001b[1mFLAGS\u001b[0m
  \u001b[32m--backend-package\u001b[0m \u001b[2mstring\u001b[0m    Package to load more backends from (repeatable); it is imported from the current folder
  \u001b[32m--json\u001b[0m                      Print one JSON document on standard output instead of tables

\u001b[1mGLOBAL FLAGS\u001b[0m
  \u001b[32m--help\u001b[0m, \u001b[32m-h\u001b[0m                                                          Show help information
  \u001b[32m--version\u001b[0m, \u001b[32m-v\u001b[0m                                                       Show version information
  \u001b[32m--wizard\u001b[0m                                                            Start wizard mode for a command
  \u001b[32m--completions\u001b[0m \u001b[2m<bash|zsh|fish|powershell|sh|pwsh>\u001b[0m                    Print shell completion script (choices: bash, zsh, fish, powershell, sh, pwsh)
  \u001b[32m--log-level\u001b[0m \u001b[2m<all|trace|debug|info|warn|warning|error|fatal|none>\u001b[0m    Sets the minimum log level (choices: all, trace, debug, info, warn, warning, error, fatal, none)`,
  "backends conformance": `\u001b[1mDESCRIPTION\u001b[0m
  Judge a backend by every case of the conformance kit; exit code 1 where one fails

\u001b[1mUSAGE\u001b[0m
  \u001b[36mtensorferry backends conformance [flags] <NAME>\u001b[0m

\u001b[1mARGUMENTS\u001b[0m
  \u001b[32mNAME\u001b[0m \u001b[2mstring\u001b[0m    The backend to judge

\u001b[1mFLAGS\u001b[0m
  \u001b[32m--ranks\u001b[0m \u001b[2minteger\u001b[0m             Most processes of a case, 1 to 4; cases of more ranks are skipped (4 by default)
  \u001b[32m--filter\u001b[0m \u001b[2mstring\u001b[0m             Only cases with this in their service or name, as copyDriver or cancel
  \u001b[32m--options\u001b[0m \u001b[2mstring\u001b[0m            The backend's own options as JSON, as {"threads": 2}
  \u001b[32m--quirks\u001b[0m \u001b[2mstring\u001b[0m             YAML or JSON file of cases that are known to fail, each with the reason; they are not run
  \u001b[32m--hooks\u001b[0m \u001b[2mstring\u001b[0m              JavaScript or TypeScript module whose replayTesting holds the device of a replay backend back; by default the descriptor's
  \u001b[32m--case-seconds\u001b[0m \u001b[2mnumber\u001b[0m       Seconds after which a case counts as hanging (60 by default)
  \u001b[32m--report\u001b[0m \u001b[2mstring\u001b[0m             File to write the report to, as JSON
  \u001b[32m--note\u001b[0m \u001b[2mstring\u001b[0m               A line for the report, such as that the devices are simulated
  \u001b[32m--backend-package\u001b[0m \u001b[2mstring\u001b[0m    Package to load more backends from (repeatable); it is imported from the current folder
  \u001b[32m--json\u001b[0m                      Print one JSON document on standard output instead of tables

\u001b[1mGLOBAL FLAGS\u001b[0m
  \u001b[32m--help\u001b[0m, \u001b[32m-h\u001b[0m                                                          Show help information
  \u001b[32m--version\u001b[0m, \u001b[32m-v\u001b[0m                                                       Show version information
  \u001b[32m--wizard\u001b[0m                                                            Start wizard mode for a command
  \u001b[32m--completions\u001b[0m \u001b[2m<bash|zsh|fish|powershell|sh|pwsh>\u001b[0m                    Print shell completion script (choices: bash, zsh, fish, powershell, sh, pwsh)
  \u001b[32m--log-level\u001b[0m \u001b[2m<all|trace|debug|info|warn|warning|error|fatal|none>\u001b[0m    Sets the minimum log level (choices: all, trace, debug, info, warn, warning, error, fatal, none)

\u001b[1mEXAMPLES\u001b[0m
  \u001b[2m# The host backend, up to four processes\u001b[0m
  \u001b[36mtensorferry backends conformance torch-copy\u001b[0m

  \u001b[2m# A backend of your own, its driver only\u001b[0m
  \u001b[36mtensorferry backends conformance spool --backend-package ./spool --filter copyDriver\u001b[0m

  \u001b[2m# Two devices, with a report\u001b[0m
  \u001b[36mtensorferry backends conformance nccl --ranks 2 --report nccl.json\u001b[0m`,
  doctor: `\u001b[1mDESCRIPTION\u001b[0m
  Inspect the machine and every backend, with remedies

\u001b[1mUSAGE\u001b[0m
  \u001b[36mtensorferry doctor [flags]\u001b[0m

\u001b[1mFLAGS\u001b[0m
  \u001b[32m--backend-package\u001b[0m \u001b[2mstring\u001b[0m    Package to load more backends from (repeatable); it is imported from the current folder
  \u001b[32m--json\u001b[0m                      Print one JSON document on standard output instead of tables

\u001b[1mGLOBAL FLAGS\u001b[0m
  \u001b[32m--help\u001b[0m, \u001b[32m-h\u001b[0m                                                          Show help information
  \u001b[32m--version\u001b[0m, \u001b[32m-v\u001b[0m                                                       Show version information
  \u001b[32m--wizard\u001b[0m                                                            Start wizard mode for a command
  \u001b[32m--completions\u001b[0m \u001b[2m<bash|zsh|fish|powershell|sh|pwsh>\u001b[0m                    Print shell completion script (choices: bash, zsh, fish, powershell, sh, pwsh)
  \u001b[32m--log-level\u001b[0m \u001b[2m<all|trace|debug|info|warn|warning|error|fatal|none>\u001b[0m    Sets the minimum log level (choices: all, trace, debug, info, warn, warning, error, fatal, none)`,
  agent: `\u001b[1mDESCRIPTION\u001b[0m
  Serve one rank of the tensor bus: processes hand it tensors, it exchanges them with other agents

\u001b[1mUSAGE\u001b[0m
  \u001b[36mtensorferry agent [flags]\u001b[0m

\u001b[1mFLAGS\u001b[0m
  \u001b[32m--rank\u001b[0m \u001b[2minteger\u001b[0m              Rank of this agent among all; by default AGENT_RANK, or RANK + AGENT_RANK_OFFSET
  \u001b[32m--folder\u001b[0m \u001b[2mstring\u001b[0m             Folder of the queue and the state; by default TENSOR_BUS_DIRECTORY, or /tmp
  \u001b[32m--store\u001b[0m \u001b[2mstring\u001b[0m              Where agents meet: HOST:PORT of the agent that serves the store, or the URL of an etcd (default 127.0.0.1:29650)
  \u001b[32m--serve\u001b[0m                     Serve the store at that address; one agent does. Beyond loopback it needs TENSORFERRY_TOKEN
  \u001b[32m--host\u001b[0m \u001b[2mstring\u001b[0m               Address of this machine at which other agents reach it
  \u001b[32m--deadline\u001b[0m \u001b[2mnumber\u001b[0m           Seconds that a command waits for other ranks; TENSORFERRY_DEADLINE, or 60
  \u001b[32m--backend\u001b[0m \u001b[2mstring\u001b[0m            Backend that moves the bytes; auto takes one for the host and, once GPU tensors come, one for them
  \u001b[32m--device\u001b[0m \u001b[2minteger\u001b[0m            Number of the GPU that this agent's processes use; by default LOCAL_RANK and the like, or 0
  \u001b[32m--backend-package\u001b[0m \u001b[2mstring\u001b[0m    Package to load more backends from (repeatable); it is imported from the current folder
  \u001b[32m--json\u001b[0m                      Print one JSON document on standard output instead of tables

\u001b[1mGLOBAL FLAGS\u001b[0m
  \u001b[32m--help\u001b[0m, \u001b[32m-h\u001b[0m                                                          Show help information
  \u001b[32m--version\u001b[0m, \u001b[32m-v\u001b[0m                                                       Show version information
  \u001b[32m--wizard\u001b[0m                                                            Start wizard mode for a command
  \u001b[32m--completions\u001b[0m \u001b[2m<bash|zsh|fish|powershell|sh|pwsh>\u001b[0m                    Print shell completion script (choices: bash, zsh, fish, powershell, sh, pwsh)
  \u001b[32m--log-level\u001b[0m \u001b[2m<all|trace|debug|info|warn|warning|error|fatal|none>\u001b[0m    Sets the minimum log level (choices: all, trace, debug, info, warn, warning, error, fatal, none)

\u001b[1mEXAMPLES\u001b[0m
  \u001b[2m# The first agent, which also serves the store\u001b[0m
  \u001b[36mtensorferry agent --rank 0 --serve\u001b[0m

  \u001b[2m# Another one, with files of its own folder\u001b[0m
  \u001b[36mtensorferry agent --rank 1 --folder /run/job7\u001b[0m`
}
