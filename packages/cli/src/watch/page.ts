// SPDX-License-Identifier: Apache-2.0
/**
 * The page of a fleet: one document with its own style and script, and nothing of the fleet in it. Its policy lets nothing
 * else run, and lets it talk to its own server alone.
 */
import { createHash } from "node:crypto"
import { elementsScript } from "./script/elements.ts"
import { flowScript } from "./script/flow.ts"
import { liveTableScript } from "./script/liveTable.ts"
import { mainScript, scheduleScript } from "./script/main.ts"
import { membersScript } from "./script/members.ts"
import { watchStyle } from "./watchStyle.ts"

const script = `"use strict";
(() => {
${[elementsScript, scheduleScript, liveTableScript, membersScript, flowScript, mainScript].join("\n")}
})();
`

const hashOf = (text: string): string => `'sha256-${createHash("sha256").update(text).digest("base64")}'`

const figure = (name: string, id: string, about: string): string =>
  `<div><dt>${name}</dt><dd><span id="${id}">–</span><small id="${id}About">${about}</small></dd></div>`

/** The document, and the policy that goes with it as a header. */
export const watchPage = (): { readonly html: string; readonly policy: string } => {
  const policy = [
    "default-src 'none'",
    `script-src ${hashOf(script)}`,
    `style-src ${hashOf(watchStyle)}`,
    "connect-src 'self'",
    "img-src data:",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'"
  ].join("; ")
  const html = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>tensorferry watch</title><link rel="icon" href="data:,"><style>${watchStyle}</style></head><body>
<header><div class="brand">tensorferry watch <span class="badge" id="link">connecting</span></div>
<h1 id="title">Fleet</h1>
<p class="hidden" id="said" role="status" aria-live="polite"></p>
<p id="trouble" role="alert" hidden><b>What is shown is old.</b> <span id="troubleText"></span></p>
<dl class="figures">
${figure("version in use", "figureVersion", "of the fleet")}
${figure("replicas serving", "figureServing", "answer requests")}
${figure("update", "figureUpdate", "")}
${figure("between members", "figureRate", "bytes that arrive now")}
${figure("need a look", "figureTrouble", "")}
</dl></header><main>
<noscript><p>This page needs its script, which this browser does not run. tensorferry watch --terminal shows the same.</p></noscript>
<section aria-labelledby="flowHead"><h2 id="flowHead">Update</h2><p class="quiet" id="flowAbout">Waiting for the fleet.</p>
<div id="meter" role="progressbar" aria-label="Bytes that have arrived" aria-valuemin="0" aria-valuemax="100" hidden><i></i></div>
<div class="views" id="treeChoice" role="group" aria-label="Trees of the update"></div>
<div class="treeView" tabindex="0" role="region" aria-label="Tree of the update"><div id="tree" role="img" hidden></div></div></section>
<section aria-labelledby="membersHead"><h2 id="membersHead">Members</h2><p class="quiet" id="versions">Waiting for the fleet.</p>
<p class="why" id="removed" hidden></p>
<div class="views" id="legend" role="group" aria-label="Show members of one state"></div>
<div class="split"><div><div id="field" role="listbox" tabindex="0" aria-label="Members by rank; arrow keys pick one"></div>
<p class="quiet" id="hint">A click or the arrow keys pick a member, and say what is known of it.</p>
<div id="detail" role="region" aria-label="Picked member" hidden></div></div><div class="data" id="memberTable"></div></div></section>
<section aria-labelledby="linksHead"><h2 id="linksHead">Links</h2><p class="quiet">Bytes from member to member in this update, and how fast they arrive now.</p>
<div class="data" id="linkTable"></div></section>
<section aria-labelledby="historyHead"><h2 id="historyHead">History</h2><p class="quiet">Updates, newest first. Bars show staging, then the time in which replicas stood still.</p>
<p class="quiet" id="historyNone">Waiting for the fleet.</p><ol id="history"></ol></section>
</main><footer>Made by tensorferry watch. It looks at the fleet, and changes nothing.</footer>
<script>${script}</script></body></html>
`
  return { html, policy }
}
