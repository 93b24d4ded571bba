// SPDX-License-Identifier: Apache-2.0
/** A conformance report for people: every case of every service, and what it comes to. */
import { type ConformanceReport, countCases } from "@tensorferry/testing"
import { table } from "../text/Table.ts"

/** What every rank says, without the stacks that the document has; a reason to skip is one line anyway. */
const firstLines = (text: string): string =>
  text
    .split("\n")
    .filter((line) => !/^\s+at /.test(line))
    .slice(0, 4)
    .join(" | ")

const count = (number: number, what: string): string => `${number} ${what}`

export const describeCounts = (report: ConformanceReport): string => {
  const { passed, failed, skipped } = countCases(report.services.flatMap(({ cases }) => cases))
  return [count(passed, "passed"), count(failed, "failed"), count(skipped, "skipped")].join(", ")
}

export const describeReport = (report: ConformanceReport): string =>
  [
    `${report.backend} of ${report.package.name} ${report.package.version}, contract ${report.core.apiVersion}: ${report.probe.detail}`,
    ...report.services.map(({ service, isOffered, cases }) =>
      !isOffered
        ? `${service}: not offered`
        : cases.length === 0
          ? `${service}: no case chosen`
          : table(
              [service, "ranks", "result", "why"],
              cases.map(({ name, ranks, status, detail }) => [name, String(ranks), status, firstLines(detail)]),
              ["left", "right"]
            )
    ),
    `${report.backend}: ${describeCounts(report)}`
  ].join("\n\n")
