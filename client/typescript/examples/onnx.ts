/**
 * Perceptrons as models in the ONNX format, for `--onnx` of cartpole.ts.
 */

import { create, toBinary, type MessageInitShape } from "@bufbuild/protobuf";
import type { Tensor } from "rollserve";

import {
  AttributeProto_AttributeType,
  ModelProtoSchema,
  type TensorProtoSchema,
  type ValueInfoProtoSchema,
} from "./generated/onnx_pb.js";

const FLOAT = 1; // of TensorProto.DataType
const IR_VERSION = 8n;
const OPSET_VERSION = 17n;

/**
 * Return a model with an input `observation` (N, inputs) and an output `logits` (N, outputs).
 *
 * @param parameters - `i/weight` (outputs, inputs) and `i/bias` (outputs) of each layer i. They become initializers of
 * the same names, so that later updates can send them alone.
 */
export function onnxModel(parameters: Readonly<Record<string, Tensor>>): Uint8Array {
  const numLayers = Object.keys(parameters).length / 2;
  const shapes = Array.from({ length: numLayers }, (_, layer) => parameters[`${String(layer)}/weight`]?.shape ?? []);
  const node = shapes.flatMap((_, index) => {
    const layer = String(index);
    const isLast = index === numLayers - 1;
    const input = index === 0 ? "observation" : `${String(index - 1)}/output`;
    const sum = isLast ? "logits" : `${layer}/sum`;
    const gemm = {
      opType: "Gemm",
      input: [input, `${layer}/weight`, `${layer}/bias`],
      output: [sum],
      attribute: [{ name: "transB", i: 1n, type: AttributeProto_AttributeType.INT }],
    };
    return isLast ? [gemm] : [gemm, { opType: "Tanh", input: [sum], output: [`${layer}/output`] }];
  });
  const model = create(ModelProtoSchema, {
    irVersion: IR_VERSION,
    producerName: "rollserve-example",
    opsetImport: [{ version: OPSET_VERSION }],
    graph: {
      name: "policy",
      node,
      initializer: Object.entries(parameters).map(([name, tensor]) => initializer(name, tensor)),
      input: [matrix("observation", shapes[0]?.[1] ?? 0)],
      output: [matrix("logits", shapes[numLayers - 1]?.[0] ?? 0)],
    },
  });
  return toBinary(ModelProtoSchema, model);
}

function initializer(name: string, { shape, data }: Tensor): MessageInitShape<typeof TensorProtoSchema> {
  const rawData = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return { name, dims: shape.map(BigInt), dataType: FLOAT, rawData };
}

/** Return the description of an input or output with any number of rows. */
function matrix(name: string, numColumns: number): MessageInitShape<typeof ValueInfoProtoSchema> {
  const rows = { value: { case: "dimParam", value: "N" } } as const;
  const columns = { value: { case: "dimValue", value: BigInt(numColumns) } } as const;
  return { name, type: { tensorType: { elemType: FLOAT, shape: { dim: [rows, columns] } } } };
}
