/**
 * Updates that carry parameters, which may be large: written with one copy of each.
 *
 * @packageDocumentation
 */

import { create, toBinary, type DescField } from "@bufbuild/protobuf";
import { BinaryWriter, WireType } from "@bufbuild/protobuf/wire";

import { parametersByName, type Parameters } from "./agents.js";
import { toDataType } from "./dtypes.js";
import { ParametersSchema } from "./generated/rollserve/v1/agent_pb.js";
import {
  AgentUpdateSchema,
  UpdateAgentRequestSchema,
  type UpdateAgentRequest,
} from "./generated/rollserve/v1/sampler_service_pb.js";
import { NamedTensorSchema, TensorSchema } from "./generated/rollserve/v1/tensor_pb.js";
import type { Tensor } from "./tensor.js";

/**
 * Return a serialized UpdateAgentRequest with parameters for all workers.
 *
 * @param request - The request without its update.
 * @param parameters - The parameters.
 */
export function parametersUpdateToBytes(request: UpdateAgentRequest, parameters: Parameters): Uint8Array {
  const tensors = [...parametersByName(parameters)].flatMap(([name, tensor]) =>
    delimited(ParametersSchema.field.tensors, [
      toBinary(NamedTensorSchema, create(NamedTensorSchema, { name })),
      ...delimited(NamedTensorSchema.field.tensor, contentOf(tensor)),
    ]),
  );
  const update = delimited(AgentUpdateSchema.field.parameters, tensors);
  const parts = delimited(UpdateAgentRequestSchema.field.allWorkers, update);
  return Buffer.concat([toBinary(UpdateAgentRequestSchema, request), ...parts]);
}

/** Return the content of a Tensor, in parts. */
function contentOf({ dtype, shape, data }: Tensor): Uint8Array[] {
  const head = create(TensorSchema, { dataType: toDataType(dtype), shape: shape.map(BigInt) });
  const elements = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return [toBinary(TensorSchema, head), ...delimited(TensorSchema.field.data, [elements])];
}

/** Return a length-delimited field with its content, in parts. */
function delimited(field: DescField, content: readonly Uint8Array[]): Uint8Array[] {
  const byteLength = content.reduce((sum, part) => sum + part.byteLength, 0);
  const head = new BinaryWriter().tag(field.number, WireType.LengthDelimited).uint32(byteLength).finish();
  return [head, ...content];
}
