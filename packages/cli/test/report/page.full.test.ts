// SPDX-License-Identifier: Apache-2.0
/** What a run leaves behind: a timeline of all ranks, a record, and the page made of it, seen in a browser where there is one. */
import { createHash } from "node:crypto"
import { existsSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterAll, afterEach, assert, beforeAll, describe, it } from "@effect/vitest"
import { fullRegion } from "@tensorferry/core/base/Region"
import type { TraceDocument, TraceEvent } from "@tensorferry/core/trace/TraceFile"
import { openModel } from "@tensorferry/model/openModel"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { reportPage } from "../../src/report/page.ts"
import { decodeRunRecord, type RunRecord } from "../../src/report/RunRecord.ts"
import { findBrowser, openPage, type Page } from "../support/chromium.ts"
import { endAll, failuresOf, run, scratch } from "../support/command.ts"
import { mnist, mnistRules } from "../support/models.ts"

afterEach(endAll)

const size = 4
const folder = scratch()
const [traceFile, recordFile] = [join(folder.path, "reshard.trace.json"), join(folder.path, "run.json")]
afterAll(() => folder[Symbol.dispose]())

const readRecord = (text = readFileSync(recordFile, "utf8")): RunRecord =>
  Result.getOrThrow(decodeRunRecord(recordFile, text))

beforeAll(async () => {
  const layouts = ["--from", "tp=2", "--to", "tp=4", "--rules", mnistRules]
  const ended = await run(["reshard", mnist, ...layouts, "--trace", traceFile, "--record", recordFile])
  assert.strictEqual(ended.code, 0, ended.stderr)
  assert.include(ended.stdout, traceFile)
  assert.include(ended.stdout, recordFile)
})

describe("the trace of a real reshard", () => {
  const events = () => (JSON.parse(readFileSync(traceFile, "utf8")) as TraceDocument).traceEvents
  const slices = () => events().filter(({ ph }) => ph === "X")

  it("has every rank by its name, with the phases in their order", () => {
    const named = events().filter(({ name }) => name === "process_name")
    assert.deepStrictEqual(
      named.map(({ pid, args }) => [pid, args.name]),
      [...Array.from({ length: size }, (_, rank) => [rank, `rank ${rank}`]), [size, "command"]]
    )
    for (let rank = 0; rank < size; rank++) {
      const own = slices().filter(({ pid }) => pid === rank)
      const startOf = (name: string): number => {
        const found = own.filter((slice) => slice.name === name)
        assert.strictEqual(found.length, 1, `${name} of rank ${rank}`)
        return found[0]!.ts!
      }
      const order = [
        "job",
        "job.plan",
        "job.allocate",
        "job.load",
        "job.copy",
        "executeReshardPlan",
        "CopyService.run",
        "copy.handshake"
      ]
      const starts = [...order, "copy.prepare", "copy.wire", "copy.commit", "job.verify"].map(startOf)
      assert.deepStrictEqual(
        starts,
        [...starts].sort((a, b) => a - b)
      )
    }
  })

  it("has nearly every moment of every process in a span of what it does, from the start of the process on", () => {
    // A process that is not scheduled for a while is in no span; of all of them that is little.
    let [all, inSpans] = [0, 0]
    for (let pid = 0; pid <= size; pid++) {
      const own = slices().filter((slice) => slice.pid === pid)
      const end = Math.max(...own.map(({ ts, dur }) => ts! + dur!))
      assert.strictEqual(own[0]!.name, "process.load")
      let [covered, until] = [0, own[0]!.ts!]
      const whole = end - until
      // The job as a whole says nothing of what is done.
      for (const { name, ts, dur } of own) {
        if (name === "job") continue
        covered += Math.max(0, ts! + dur! - Math.max(until, ts!))
        until = Math.max(until, ts! + dur!)
      }
      assert.isAtLeast(covered / whole, 0.9, `process ${pid}`)
      all += whole
      inSpans += covered
    }
    assert.isAtLeast(inSpans / all, 0.98)
    const names = new Set(slices().map(({ name }) => name))
    for (const name of [
      "job.allocate",
      "job.release",
      "job.finish",
      "ProcessGroup.wait",
      "group.join",
      "command.ranks"
    ])
      assert.isTrue(names.has(name), name)
  })

  it("has the seconds of each rank add up to those of its job", () => {
    for (const { rank, phases, seconds } of readRecord().ranks) {
      const job = phases.find(({ name }) => name === "job")!.seconds
      const { ranks, ...steps } = seconds
      assert.isAbove(ranks!, 0)
      const sum = Object.values(steps).reduce((total, one) => total + one, 0)
      // What is released after the report is not in it.
      assert.isAtLeast(sum / job, 0.9, `rank ${rank}`)
      assert.isAtMost(sum / job, 1.001, `rank ${rank}`)
    }
  })

  it("is balanced and forward in time, and rows nest", () => {
    const all = slices()
    for (const { ts, dur, name } of all) assert.isTrue(ts! >= 0 && dur! >= 0, name)
    assert.deepStrictEqual(
      all.map(({ ts }) => ts),
      all.map(({ ts }) => ts!).sort((a, b) => a - b)
    )
    for (const [at, one] of all.entries()) {
      for (const two of all.slice(at + 1)) {
        if (one.tid !== two.tid) continue
        const [end1, end2] = [one.ts! + one.dur!, two.ts! + two.dur!]
        assert.isTrue(end1 <= two.ts! + 1e-3 || end2 <= end1 + 1e-3, `${one.name} and ${two.name}`)
      }
    }
  })

  it("puts the ranks' clocks together: no rank commits before every rank has begun its run", () => {
    const of = (name: string) => slices().filter((slice) => slice.name === name)
    const lastBegin = Math.max(...of("CopyService.run").map(({ ts }) => ts!))
    const firstEnd = Math.min(...of("CopyService.run").map(({ ts, dur }) => ts! + dur!))
    assert.isBelow(lastBegin, firstEnd)
  })

  it("leads an arrow with its bytes along every pair that exchanged something", () => {
    const { traffic } = readRecord()
    const pairs = traffic.filter(({ from, to }) => from !== to)
    assert.isNotEmpty(pairs)
    const byId = Map.groupBy(
      events().filter(({ ph }) => ph === "s" || ph === "f"),
      ({ id }) => id!
    )
    assert.strictEqual(byId.size, pairs.length)
    const arrows = [...byId.values()].map((both) => {
      const begin = both.find(({ ph }) => ph === "s")!
      const end = both.find(({ ph }) => ph === "f")!
      assert.isAtMost(begin.ts!, end.ts!)
      return { from: begin.pid, to: end.pid, bytes: begin.args.bytes }
    })
    assert.sameDeepMembers(
      arrows,
      pairs.map(({ from, to, bytes }) => ({ from, to, bytes }))
    )
  })
})

describe("the record of a real reshard", () => {
  it("has what was moved, rank by rank and parameter by parameter", () => {
    const record = readRecord()
    assert.deepStrictEqual([record.job.from, record.job.to, record.job.verified], ["tp=2", "tp=4", true])
    assert.deepStrictEqual(
      record.ranks.map(({ rank }) => rank),
      [0, 1, 2, 3]
    )
    const total = (128 * 784 + 10 * 128) * 4
    const moved = record.traffic.reduce((sum, { bytes }) => sum + bytes, 0)
    assert.strictEqual(moved, total)
    assert.strictEqual(record.backend.name, "auto")
    for (const { rank, memory, phases, copy } of record.ranks) {
      assert.isAbove(memory.before, 10e6, `rank ${rank}`)
      assert.isAtLeast(memory.peak, memory.before)
      assert.strictEqual(copy.rank, rank)
      assert.include(
        phases.map(({ name }) => name),
        "copy.wire"
      )
    }
    // Source shards, destination shards, and nothing for casts.
    assert.strictEqual(record.ranks[0]!.memory.estimate, (64 * 784 + 5 * 128 + 32 * 784 + 3 * 128) * 4)
    const [first, second] = record.tensors
    assert.deepStrictEqual(
      [first!.name, first!.shape, first!.bytes, first!.sources, first!.destinations],
      ["l1.weight", [128, 784], 128 * 784 * 4, [0, 1], [0, 1, 2, 3]]
    )
    assert.strictEqual(second!.name, "l2.weight")
    assert.match(first!.digest ?? "", /^[0-9a-f]{64}$/)
    assert.notStrictEqual(first!.digest, second!.digest)
    assert.includeMembers(
      record.facts.map(({ name }) => name),
      ["tensorferry", "Node", "backend torch-copy"]
    )
  })

  it("has the digest of a replicated tensor that each of its copies has", async () => {
    using place = scratch()
    const record = join(place.path, "run.json")
    const layouts = ["--from", "tp=1", "--to", "tp=1,dp=2", "--default", "replicate"]
    const ended = await run(["reshard", mnist, ...layouts, "--record", record])
    assert.strictEqual(ended.code, 0, ended.stderr)
    const [weight] = readRecord(readFileSync(record, "utf8")).tensors
    assert.deepStrictEqual(weight!.destinations, [0, 1])
    const bytes = new Uint8Array(weight!.bytes / 2)
    const read = Effect.flatMap(openModel(mnist), (model) =>
      model.readRegion(weight!.name, fullRegion(weight!.shape), bytes)
    )
    await Effect.runPromise(Effect.scoped(read))
    assert.strictEqual(weight!.digest, createHash("sha256").update(bytes).digest("hex"))
  })

  it("without verification has no digests, and what --json prints has nothing of it", async () => {
    using place = scratch()
    const record = join(place.path, "run.json")
    const layouts = ["--to", "tp=1", "--rules", mnistRules]
    const ended = await run(["reshard", mnist, ...layouts, "--no-verify", "--record", record, "--json"])
    assert.strictEqual(ended.code, 0, ended.stderr)
    assert.isNull(readRecord(readFileSync(record, "utf8")).tensors[0]!.digest)
    const { reports } = JSON.parse(ended.stdout) as { readonly reports: ReadonlyArray<object> }
    for (const report of reports) assert.doesNotHaveAnyKeys(report, ["trace", "observed"])
  })

  it("is refused where it cannot be written, before any rank starts", async () => {
    const layouts = ["--to", "tp=2", "--rules", mnistRules]
    const ended = await run(["reshard", mnist, ...layouts, "--record", folder.path, "--json"])
    assert.strictEqual(ended.code, 1)
    assert.strictEqual(failuresOf(ended)[0]!.fields?.file, folder.path)
  })

  /** The data with another value at a place; without the place where there is no value. */
  const changed = (data: unknown, [key, ...rest]: ReadonlyArray<string | number>, value: unknown): unknown => {
    const copy: Record<string | number, unknown> = Array.isArray(data)
      ? ([...data] as never)
      : { ...(data as Record<string, unknown>) }
    if (rest.length > 0) copy[key!] = changed(copy[key!], rest, value)
    else if (value === undefined) delete copy[key!]
    else copy[key!] = value
    return copy
  }

  for (const [field, at, value] of [
    ["ranks[2].memory.peak", ["ranks", 2, "memory", "peak"], "much"],
    ["tensors[1].shape[0]", ["tensors", 1, "shape", 0], -1],
    ["traffic[0].bytes", ["traffic", 0, "bytes"], undefined],
    ["job.verified", ["job", "verified"], "yes"],
    ["format", ["format"], "tensorferry.reshard-plan"],
    ["ranks[0].copy.phases.writeback", ["ranks", 0, "copy", "phases", "writeback"], null]
  ] as const) {
    it(`with a wrong ${field} is refused by that name`, () => {
      const told = decodeRunRecord("run.json", JSON.stringify(changed(readRecord(), at, value)))
      assert.isTrue(Result.isFailure(told))
      if (!Result.isFailure(told)) return
      assert.strictEqual(told.failure.reason._tag, "InvalidRecord")
      assert.strictEqual(told.failure.field, field)
      assert.include(told.failure.message, field)
    })
  }

  it("of another version is refused as such, and a file that is not a record by what is wrong", () => {
    for (const [text, reason] of [
      [JSON.stringify({ ...readRecord(), version: 2 }), "UnknownVersion"],
      ["{", "InvalidRecord"],
      ["[]", "InvalidRecord"]
    ] as const) {
      const told = decodeRunRecord("run.json", text)
      assert.isTrue(Result.isFailure(told) && told.failure.reason._tag === reason, text.slice(0, 40))
    }
  })

  it("is not made into a page by the command where it is wrong", async () => {
    using place = scratch()
    const file = join(place.path, "bad.json")
    writeFileSync(file, JSON.stringify({ ...readRecord(), ranks: [{}] }))
    const ended = await run(["report", file, "--json"])
    assert.strictEqual(ended.code, 1)
    const [failure] = failuresOf(ended)
    assert.strictEqual(failure!.reason, "InvalidRecord")
    assert.include(failure!.message, "ranks[0].rank")
    assert.strictEqual(failure!.fields?.file, file)
    assert.isFalse(existsSync(join(place.path, "bad.html")))
  })
})

const hostile = `<script>window.ran = 1</script><img src=x onerror="window.ran = 2">'"&</td>`

/** A record with names that want to be markup, and more parameters than anybody wants in one document. */
const large = (): RunRecord => {
  const record = readRecord()
  const [tensor] = record.tensors
  const tensors = Array.from({ length: 20_000 }, (_, at) => ({
    ...tensor!,
    name: `layers.${at}.weight`,
    bytes: (at * 7919) % 20_000
  }))
  return {
    ...record,
    job: { ...record.job, checkpoint: `/models/${hostile}`, from: hostile, to: hostile, out: hostile },
    backend: { name: hostile, reason: hostile },
    facts: [{ name: hostile, value: hostile }],
    traffic: record.traffic.map((pair) => ({ ...pair, path: hostile, reason: hostile })),
    ranks: record.ranks.map((rank) => ({
      ...rank,
      host: hostile,
      phases: rank.phases.map((phase) => ({ ...phase, about: hostile }))
    })),
    tensors: [{ ...tensor!, name: hostile }, ...tensors]
  }
}

describe("the page", () => {
  it("is made by the command, beside its record, and needs nothing from anywhere", async () => {
    const ended = await run(["report", recordFile])
    assert.strictEqual(ended.code, 0, ended.stderr)
    const page = join(folder.path, "run.html")
    assert.strictEqual(ended.stdout.trim(), page)
    const html = readFileSync(page, "utf8")
    assert.notMatch(html, /\b(src|href|action)\s*=|@import|url\(|https?:/i)
    assert.include(html, "default-src 'none'")
    const over = await run(["report", recordFile, "--out", recordFile, "--json"])
    assert.strictEqual(over.code, 2, "it does not overwrite its record")
  })

  it("holds no markup from the record", () => {
    const html = reportPage(large())
    assert.notInclude(html, "<script>window.ran")
    assert.notInclude(html, "<img")
    assert.strictEqual(html.match(/<script>/g)!.length, 1, "its own script alone")
    assert.strictEqual(html.match(/<script /g)!.length, 2, "and its data")
  })

  it("gives a row to ranks that send and a column to those that receive", () => {
    const record = readRecord()
    const [sent] = record.traffic
    const html = reportPage({
      ...record,
      traffic: [
        { ...sent!, from: 1, to: 0 },
        { ...sent!, from: 1, to: 2 }
      ]
    })
    const labels = (kind: string) =>
      [...html.matchAll(new RegExp(`class="${kind}"[^>]*>(\\d+)<`, "g"))].map(([, rank]) => rank)
    assert.deepStrictEqual(labels("axis end"), ["1"])
    assert.deepStrictEqual(labels("axis"), ["0", "2"])
    assert.include(html, "Ranks that send nothing have no row")
  })

  const browser = findBrowser()
  describe.skipIf(browser === undefined)("in a browser", () => {
    let page: Page
    beforeAll(async () => {
      const file = join(folder.path, "large.html")
      writeFileSync(file, reportPage(large()))
      page = await openPage(browser!, file)
    })
    afterAll(() => page.close())

    const table = "document.querySelectorAll('.data')[1]"
    const firstName = `${table}.querySelector('tbody tr:not(.spacer) td').textContent`

    it("runs its own script and nothing of the record's", async () => {
      assert.strictEqual(await page.ask("typeof window.ran"), "undefined")
      assert.strictEqual(await page.ask(firstName), hostile, "shown as the text that it is")
      assert.strictEqual(await page.ask("document.querySelectorAll('main img').length"), 0)
      assert.deepStrictEqual(page.complaints, [])
    })

    it("sorts and filters thousands of parameters, and has few of them in the document", async () => {
      const rows = `${table}.querySelectorAll('tbody tr:not(.spacer)').length`
      assert.isBelow(Number(await page.ask(rows)), 60)
      assert.strictEqual(await page.ask(`${table}.querySelector('table').getAttribute('aria-rowcount')`), "20002")
      const click = (column: number) => `${table}.querySelectorAll('th button')[${column}].click()`
      const begun = performance.now()
      await page.ask(click(3))
      const [expected] = large().tensors.toSorted((a, b) => b.bytes - a.bytes)
      assert.strictEqual(await page.ask(firstName), expected!.name)
      assert.strictEqual(await page.ask(`${table}.querySelectorAll('th')[3].getAttribute('aria-sort')`), "descending")
      const filter = (text: string) =>
        `(() => { const input = ${table}.querySelector('input'); input.value = ${JSON.stringify(text)}; input.dispatchEvent(new Event('input')) })()`
      await page.ask(filter("layers.1234 WEIGHT"))
      assert.strictEqual(await page.ask(`${table}.querySelector('[role=status]').textContent`), "11 of 20001 rows")
      await page.ask(filter(""))
      await page.ask(click(0))
      await page.ask(click(0))
      assert.strictEqual(await page.ask(firstName), "layers.19999.weight", "numbers in names are numbers")
      assert.isBelow(performance.now() - begun, 10_000)
      const scrolled = `new Promise((resolve) => { const view = ${table}.querySelector('.view'); view.scrollTop = 30 * 10000; requestAnimationFrame(() => requestAnimationFrame(() => resolve(${table}.querySelector('tbody').textContent.includes('layers.9999.weight')))) })`
      assert.isTrue(await page.ask(scrolled))
      assert.isBelow(Number(await page.ask(rows)), 60)
    })

    it("shows every pair in the heat map and narrows the timeline", async () => {
      const pairs = readRecord().traffic.length
      assert.strictEqual(await page.ask("document.querySelectorAll('.heat g').length"), pairs)
      const width =
        "[...document.querySelectorAll('.timeline .bar')].find((bar) => bar.dataset.name === 'CopyService.run').getBoundingClientRect().width"
      const before = Number(await page.ask(width))
      await page.ask(
        "[...document.querySelectorAll('.views button')].find((one) => one.textContent === 'CopyService.run').click()"
      )
      assert.isAbove(Number(await page.ask(width)), before)
      assert.strictEqual(await page.ask("document.querySelectorAll('.views [aria-pressed=true]').length"), 1)
    })

    it("labels a bar only where its whole label fits, before and after the scale changes", async () => {
      const cut =
        "[...document.querySelectorAll('.bar')].filter((bar) => bar.textContent !== '' && bar.scrollWidth > bar.clientWidth + 1).map((bar) => bar.textContent)"
      const named = "[...document.querySelectorAll('.timeline .bar')].filter((bar) => bar.textContent !== '').length"
      assert.deepStrictEqual(await page.ask(cut), [])
      await page.ask(
        "[...document.querySelectorAll('.views button')].find((one) => one.textContent === 'copy').click()"
      )
      assert.deepStrictEqual(await page.ask(cut), [])
      assert.isAbove(Number(await page.ask(named)), 0)
      // Whatever a bar's width: letters are as wide as the font has them.
      const everyWidth = `(() => {
        const bar = document.querySelector(".timeline .bar")
        const chart = bar.closest(".timeline"), lane = bar.closest(".lane")
        const [name, before] = [bar.dataset.name, bar.style.getPropertyValue("--d")]
        const wrong = []
        bar.dataset.name = "MWMWMWMW chooseCopyBackend"
        for (let pixels = 20; pixels < 400; pixels += 1) {
          bar.style.setProperty("--d", pixels / lane.clientWidth * Number(chart.style.getPropertyValue("--tn")))
          labelBars(chart)
          if (bar.textContent !== "" && bar.scrollWidth > bar.clientWidth + 1) wrong.push(pixels)
        }
        bar.dataset.name = name
        bar.style.setProperty("--d", before)
        labelAll()
        return wrong
      })()`
      assert.deepStrictEqual(await page.ask(everyWidth), [])
    })

    it("moves from bar to bar by keys, says each one's numbers, and changes the scale", async () => {
      const press = (key: string) =>
        page.ask(
          `document.querySelector('.timeline').dispatchEvent(new KeyboardEvent('keydown', { key: '${key}', bubbles: true }))`
        )
      const said = () => page.ask("document.querySelector('.chosen').textContent")
      await press("0")
      await press("ArrowRight")
      assert.match(String(await said()), /^rank 0: process\.load: /)
      await press("ArrowRight")
      assert.match(String(await said()), /^rank 0: process\.wait: /)
      for (let row = 0; row < 12; row++) await press("ArrowDown")
      assert.match(String(await said()), /^rank [1-3]: /)
      const scale = () => page.ask("Number(document.querySelector('.timeline').style.getPropertyValue('--tn'))")
      assert.strictEqual(await scale(), 1)
      await press("+")
      assert.strictEqual(await scale(), 0.5)
      await press("-")
      assert.strictEqual(await scale(), 1)
      assert.strictEqual(await page.ask("document.querySelector('.timeline').tabIndex"), 0)
    })

    it("is readable in light and dark, and wide tables do not widen it", async () => {
      const luminance = `(() => { const [text, ground] = ['color', 'backgroundColor'].map((name) => getComputedStyle(document.body)[name].match(/[\\d.]+/g).slice(0, 3).map(Number)); const of = (rgb) => { const [r, g, b] = rgb.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 }); return 0.2126 * r + 0.7152 * g + 0.0722 * b }; const [a, b] = [of(text), of(ground)].sort((x, y) => y - x); return (a + 0.05) / (b + 0.05) })()`
      const grounds = new Set<unknown>()
      for (const value of ["light", "dark"]) {
        await page.call("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value }] })
        assert.isAbove(Number(await page.ask(luminance)), 7, value)
        grounds.add(await page.ask("getComputedStyle(document.body).backgroundColor"))
      }
      assert.strictEqual(grounds.size, 2)
      for (const width of [360, 1280]) {
        await page.call("Emulation.setDeviceMetricsOverride", {
          width,
          height: 800,
          deviceScaleFactor: 1,
          mobile: false
        })
        assert.isAtMost(Number(await page.ask("document.documentElement.scrollWidth")), width)
        const cut =
          "[...document.querySelectorAll('.data td.number')].filter((cell) => cell.scrollWidth > cell.clientWidth)"
        assert.strictEqual(await page.ask(`${cut}.length`), 0, `numbers that are cut at ${width}`)
      }
    })
  })
})

describe("the page of two runs", () => {
  it("is made by the command, and names what changed and what differs", async () => {
    const record = readRecord()
    const slower: RunRecord = {
      ...record,
      job: { ...record.job, to: "tp=8" },
      backend: { name: "tcp", reason: hostile },
      ranks: record.ranks.map((rank) => ({ ...rank, seconds: { ...rank.seconds, load: 20, write: 0 } }))
    }
    const other = join(folder.path, "slower.json")
    writeFileSync(other, JSON.stringify(slower))
    const ended = await run(["report", recordFile, other])
    assert.strictEqual(ended.code, 0, ended.stderr)
    const page = join(folder.path, "run-and-slower.html")
    assert.strictEqual(ended.stdout.trim(), page)
    const html = readFileSync(page, "utf8")
    assert.match(html, /<th scope="row">load<\/th>.*<td>20\.0 s<\/td><td class="warn">\d+ times as much<\/td>/)
    assert.match(html, /<th scope="row">backend<\/th><td>auto /)
    assert.notInclude(html, "<img")
    assert.notMatch(html, /<th scope="row">Node<\/th>/, "what is the same is not listed")
    const over = await run(["report", recordFile, other, "--out", other, "--json"])
    assert.strictEqual(over.code, 2, "it does not overwrite a record")
  })

  it.skipIf(findBrowser() === undefined)("is no wider than the screen, and complains of nothing", async () => {
    const page = await openPage(findBrowser()!, join(folder.path, "run-and-slower.html"))
    try {
      for (const width of [390, 800, 1440]) {
        await page.call("Emulation.setDeviceMetricsOverride", {
          width,
          height: 900,
          deviceScaleFactor: 1,
          mobile: false
        })
        assert.isAtMost(Number(await page.ask("document.documentElement.scrollWidth")), width)
      }
      assert.deepStrictEqual(page.complaints, [])
    } finally {
      await page.close()
    }
  })
})

describe("a trace between meshes", () => {
  it("has one run on every rank, and a record of its one tensor", async () => {
    using place = scratch()
    const [trace, record] = [join(place.path, "trace.json"), join(place.path, "run.json")]
    const meshes = ["--tensor", "l1.weight", "--from-mesh", "2:S0", "--to-mesh", "2@1:S1"]
    const ended = await run(["reshard", mnist, ...meshes, "--trace", trace, "--record", record])
    assert.strictEqual(ended.code, 0, ended.stderr)
    const { traceEvents } = JSON.parse(readFileSync(trace, "utf8")) as TraceDocument
    const runs = traceEvents.filter(({ name }) => name === "CopyService.run")
    assert.deepStrictEqual(runs.map(({ pid }) => pid).sort(), [0, 1, 2])
    assert.isNotEmpty(traceEvents.filter(({ ph }: TraceEvent) => ph === "s"))
    const { tensors } = readRecord(readFileSync(record, "utf8"))
    assert.deepStrictEqual(
      tensors.map(({ name, shape, sources, destinations }) => [name, shape, sources, destinations]),
      [["l1.weight", [128, 784], [0, 1], [1, 2]]]
    )
  })
})
