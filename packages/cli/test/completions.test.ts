// SPDX-License-Identifier: Apache-2.0
/** What real shells offer with the scripts that `tensorferry --completions` prints. */
import { spawnSync } from "node:child_process"
import { mkdirSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { scratch } from "./support/command.ts"
import { runHere } from "./support/here.ts"

const shells = ["bash", "zsh", "fish"] as const
type Shell = (typeof shells)[number]

const isThere = (shell: Shell): boolean => spawnSync(shell, ["-c", "true"]).status === 0

const place = scratch()
const script = (shell: Shell): string => join(place.path, "scripts", shell === "zsh" ? "_tensorferry" : shell)

beforeAll(async () => {
  for (const folder of ["scripts", "work/my-folder"]) mkdirSync(join(place.path, folder), { recursive: true })
  for (const file of ["my-model.safetensors", "rules.yaml"]) writeFileSync(join(place.path, "work", file), "")
  for (const shell of shells.filter(isThere)) {
    const { code, stdout, stderr } = await runHere(["--completions", shell])
    assert.strictEqual(code, 0, stderr)
    writeFileSync(script(shell), stdout)
  }
})
afterAll(() => place[Symbol.dispose]())

/** Runs lines in a shell, in the folder with the files. */
const said = (shell: Shell, lines: string, flags: ReadonlyArray<string>): string => {
  const { stdout, stderr, status } = spawnSync(shell, [...flags, "-c", lines], {
    cwd: join(place.path, "work"),
    encoding: "utf8",
    timeout: 60_000,
    env: { ...process.env, HOME: place.path, LC_ALL: "C.UTF-8", TERM: "xterm" }
  })
  assert.strictEqual(status, 0, `${stdout}\n${stderr}`)
  return stdout
}

/** What each shell makes of a line at whose end the key is pressed. */
const offered: Readonly<Record<Shell, (line: string) => string>> = {
  // The function that bash calls, with the variables and arguments that it sets.
  bash: (line) =>
    said(
      "bash",
      `source '${script("bash")}'
      COMP_LINE='${line}' COMP_POINT=${line.length}
      read -ra COMP_WORDS <<<"$COMP_LINE"; [[ $COMP_LINE == *' ' ]] && COMP_WORDS+=("")
      COMP_CWORD=$((\${#COMP_WORDS[@]} - 1))
      call=$(complete -p tensorferry | sed -n 's/.*-F \\([^ ]*\\).*/\\1/p')
      "$call" tensorferry "\${COMP_WORDS[COMP_CWORD]}" "\${COMP_WORDS[COMP_CWORD - 1]}"
      printf '%s\\n' "\${COMPREPLY[@]}"`,
      ["--noprofile", "--norc"]
    ),
  fish: (line) => said("fish", `source '${script("fish")}'; complete -C '${line}'`, ["--no-config"]),
  // An interactive shell on a terminal of its own: its system of completions runs nowhere else. It shows what is offered,
  // and a second key what came of it; a mark that it prints says that it has done so.
  zsh: (line) =>
    said(
      "zsh",
      `zmodload zsh/zpty
      zpty z zsh -f -i
      until_mark() { local part; while zpty -r z part; do print -r -- "$part"; [[ $part == *$1* ]] && return; done }
      zpty -w z 'PS1=; stty -echo rows 200 cols 200; fpath=(${join(place.path, "scripts")} $fpath); autoload -Uz compinit; compinit -u -D'
      zpty -w z 'unsetopt prompt_sp zle_bracketed_paste; zstyle ":completion:*" list-prompt ""; LISTMAX=0'
      zpty -w z 'list-and-say() { zle list-choices; zle -R; zle expand-or-complete; print -r -- "SA""ID $BUFFER" }; zle -N list-and-say; bindkey "^I" list-and-say; print REA""DY'
      until_mark READY > /dev/null
      zpty -w -n z '${line}'$'\\t'
      until_mark SAID
      zpty -d z`,
      ["-f"]
    )
}

for (const shell of shells) {
  const missing = `${shell} is not installed (apt-get install ${shell})`
  describe.skipIf(!isThere(shell))(isThere(shell) ? `in ${shell}` : missing, () => {
    const cases: ReadonlyArray<readonly [line: string, wanted: ReadonlyArray<string>, not: ReadonlyArray<string>]> = [
      ["tensorferry re", ["reshard", "report", "replay"], ["doctor"]],
      ["tensorferry delta ", ["make", "apply", "show"], ["reshard"]],
      ["tensorferry reshard m --ranks ", ["collocated", "disjoint"], ["rules.yaml"]],
      ["tensorferry reshard my", ["my-model.safetensors", "my-folder"], ["rules.yaml"]],
      ["tensorferry reshard m --rules ru", ["rules.yaml"], ["my-model"]],
      ["tensorferry reshard m --out my", ["my-folder"], ["rules.yaml"]],
      ["tensorferry reshard m --dt", ["--dtype"], ["--out"]]
    ]
    for (const [line, wanted, not] of cases)
      it(`"${line}" goes on with ${wanted.join(", ")}`, () => {
        const text = offered[shell](line)
        for (const word of wanted) assert.include(text, word)
        for (const word of not) assert.notInclude(text, word)
      })
  })
}
