// SPDX-License-Identifier: Apache-2.0
/** BERT and RoBERTa encoders. */
import type { Family } from "../../structure/Family.ts"
import {
  biased,
  column,
  embedding,
  first,
  headModule,
  last,
  layerNorms,
  norms,
  parameter,
  row,
  together,
  whole,
  wholeTensors
} from "../parts.ts"

export const bert: Family = {
  name: "bert",
  modelTypes: ["bert", "roberta", "xlm-roberta", "camembert"],
  stacks: [
    {
      kind: "encoder",
      prefixes: ["bert.", "roberta.", ""],
      layers: "encoder.layer.{}.",
      modules: biased("always", [
        ...together("attention", [
          column("attention", "attention.self.query", "q"),
          column("attention", "attention.self.key", "k"),
          column("attention", "attention.self.value", "v"),
          row("attention", "attention.output.dense", "o")
        ]),
        ...together("mlp", [column("mlp", "intermediate.dense", "up"), row("mlp", "output.dense", "down")]),
        ...layerNorms("attention.output.LayerNorm", "output.LayerNorm")
      ]),
      ends: [
        embedding("embeddings.word_embeddings"),
        ...whole("embedding", "embeddings.position_embeddings", "embeddings.token_type_embeddings").map(first),
        ...wholeTensors("embedding", "embeddings.position_ids").map(first),
        ...biased("always", norms("embeddings.LayerNorm")).map(first),
        ...whole("pooler", "pooler.dense").map(last)
      ],
      needs: [["layer"], ["attention"], ["mlp"]]
    }
  ],
  ends: [
    ...whole("head", "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"),
    ...whole("head", "lm_head.dense", "lm_head.layer_norm", "classifier", "classifier.dense", "classifier.out_proj"),
    ...whole("head", "cls.seq_relationship", "qa_outputs"),
    headModule("cls.predictions.decoder"),
    headModule("lm_head.decoder"),
    parameter("head", "cls.predictions.bias", "vocabulary"),
    parameter("head", "lm_head.bias", "vocabulary")
  ].map(last),
  isTied: true
}
