/**
 * The host of an environment: a process whose rows a worker of Rollserve steps.
 *
 * @packageDocumentation
 */

export type { TypedArray } from "./arrays.js";
export {
  box,
  discrete,
  Json,
  type Arguments,
  type Environment,
  type Host,
  type Infos,
  type Space,
  type Start,
  type Step,
  type Tensor,
  type Value,
} from "./environment.js";
export { DataType } from "./generated/rollserve/v1/tensor_pb.js";
export { serve } from "./serving.js";
