/**
 * Transforms of rewards, actions and observations, which the server applies to the rows of an environment.
 *
 * @packageDocumentation
 */

import { create } from "@bufbuild/protobuf";

import { fromDataType, toDataType, type DType } from "./dtypes.js";
import { TransformSchema, type Transform as TransformMessage } from "./generated/rollserve/v1/environment_pb.js";

/** The leaves of the observation space that a transform applies to, by name; all Boxes by default. */
interface OfLeaves {
  readonly leaves?: readonly string[] | undefined;
}

/** Images, whose channels or frames can be the first axis. */
interface OfImages extends OfLeaves {
  readonly channelsFirst?: boolean | undefined;
}

/** The settings of each kind of transform; the messages of the same names in environment.proto describe them. */
interface Transforms {
  readonly signRewards: object;
  readonly clipRewards: { readonly low?: number | undefined; readonly high?: number | undefined };
  readonly scaleRewards: { readonly factor: number; readonly offset?: number | undefined };
  readonly rescaleActions: { readonly low?: number | undefined; readonly high?: number | undefined };
  readonly clipActions: object;
  readonly castObservations: OfLeaves & { readonly dtype: DType };
  readonly scaleObservations: OfLeaves & { readonly factor: number; readonly offset?: number | undefined };
  readonly rescaleObservations: OfLeaves & { readonly low: number; readonly high: number };
  readonly cropObservations: OfImages & {
    readonly top: number;
    readonly left: number;
    readonly height: number;
    readonly width: number;
  };
  readonly resizeObservations: OfImages & { readonly height: number; readonly width: number };
  readonly grayscaleObservations: OfImages & { readonly keepChannel?: boolean | undefined };
  readonly flattenObservations: object;
}

/** A change of what passes between an agent and its environment, such as `{ clipRewards: { low: -1, high: 1 } }`. */
export type Transform = { [K in keyof Transforms]: Readonly<Record<K, Transforms[K]>> }[keyof Transforms];

/** Return a transform as a message. */
export function transformToMessage(transform: Transform): TransformMessage {
  const [[name, settings] = ["", {}]] = Object.entries(transform) as [string, { readonly dtype?: DType }][];
  const { dtype, ...values } = settings;
  const value = dtype === undefined ? values : { ...values, dataType: toDataType(dtype) };
  return create(TransformSchema, { kind: { case: name, value } as TransformMessage["kind"] });
}

/** Return the transform that a message describes, in a list; no transform for a kind of a later version. */
export function transformsFromMessage({ kind }: TransformMessage): Transform[] {
  if (kind.case === undefined) {
    return [];
  }
  const settings = Object.fromEntries(Object.entries(kind.value).filter(([name]) => !name.startsWith("$")));
  if (kind.case === "castObservations") {
    const { dataType, leaves } = kind.value;
    return [{ castObservations: { dtype: fromDataType(dataType) ?? "float32", leaves } }];
  }
  return [{ [kind.case]: settings } as unknown as Transform];
}
