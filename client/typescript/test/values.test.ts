import assert from "node:assert/strict";
import { test } from "node:test";

import { fromBinary } from "@bufbuild/protobuf";
import { status } from "@grpc/grpc-js";
import {
  AgentChange,
  Columns,
  connect,
  ConstantAgent,
  flatSize,
  float16ToFloat32,
  float32ToFloat16,
  InvalidArgumentError,
  MlpAgent,
  OnnxAgent,
  PythonAgent,
  RandomAgent,
  ServerError,
  Tensor,
  type Agent,
  type AgentUpdate,
  type CallEnvironmentsOptions,
  type ConnectOptions,
  type Discrete,
  type EnvSpec,
  type EvaluationOptions,
  type FragmentOptions,
  type InitialMlp,
  type MlpSettings,
  type OnnxNames,
  type Parameters,
  type Transform,
  type UpdateAgentOptions,
} from "rollserve";

import type { Agent as AgentMessage, MlpAgent as MlpMessage } from "#dist/generated/rollserve/v1/agent_pb";
import {
  UpdateAgentRequestSchema,
  type AgentUpdate as UpdateMessage,
} from "#dist/generated/rollserve/v1/sampler_service_pb";
import { DataType } from "#dist/generated/rollserve/v1/tensor_pb";

import { serve } from "./scripted_server.js";

/** Return the update that a server receives. */
async function sent(update: AgentUpdate): Promise<UpdateMessage["update"]> {
  await using server = await serve(() => [new Uint8Array()]);
  await using sampler = connect(server.address);
  await sampler.updateAgent(update);
  const call = server.calls[0];
  assert.ok(call);
  const request = fromBinary(UpdateAgentRequestSchema, call.request);
  assert.equal(request.update.case, "allWorkers");
  return request.update.value.update;
}

async function sentAgent(update: AgentUpdate): Promise<AgentMessage["kind"]> {
  const message = await sent(update);
  assert.equal(message.case, "agent");
  return message.value.kind;
}

async function sentMlp(agent: MlpAgent): Promise<MlpMessage> {
  const kind = await sentAgent(agent);
  assert.equal(kind.case, "mlp");
  return kind.value;
}

function zeros(...shape: number[]): Tensor {
  return Tensor.of(new Float32Array(shape.reduce((a, b) => a * b, 1)), shape);
}

const LAYERS: Parameters = {
  "0/weight": zeros(8, 4),
  "0/bias": zeros(8),
  "1/weight": zeros(2, 8),
  "1/bias": zeros(2),
};

test("test_float16_values_are_exact_and_round_trip", () => {
  const bits = Uint16Array.from({ length: 1 << 16 }, (_, code) => code);
  const values = float16ToFloat32(bits);
  assert.deepEqual([...values.subarray(0, 2)], [0, 2 ** -24]);
  assert.deepEqual(
    [values[0x3c00], values[0x3555], values[0x7bff], values[0xfc00]],
    [1, 0.333251953125, 65504, -Infinity],
  );
  assert.ok(Number.isNaN(values[0x7e00]));
  const back = float32ToFloat16(values);
  const differing = [...bits].filter((code) => back[code] !== code && !Number.isNaN(values[code]));
  assert.deepEqual(differing, []);
});

test("test_float16_rounds_ties_to_even", () => {
  const values = [1 + 2 ** -11, 1 + 3 * 2 ** -11, 65519, 65520, 2 ** -25, 3 * 2 ** -26, -0];
  assert.deepEqual([...float32ToFloat16(values)], [0x3c00, 0x3c02, 0x7bff, 0x7c00, 0, 1, 0x8000]);
});

test("test_tensor_knows_its_type_and_shape", () => {
  const tensor = Tensor.of(Int16Array.of(1, 2, 3, 4, 5, 6), [3, 2]);
  const dtype: "int16" = tensor.dtype;
  assert.equal(dtype, "int16");
  assert.deepEqual([...tensor.row(1)], [3, 4]);
  assert.deepEqual([...tensor.rows(1, 3).as("int16")], [3, 4, 5, 6]);
  assert.deepEqual([...tensor.toFloat32()], [1, 2, 3, 4, 5, 6]);
  assert.throws(() => tensor.as("float32"), /dtype: expected float32, got int16/);
  assert.deepEqual([...(tensor as Tensor).row(2, "int16")], [5, 6]);
  assert.throws(() => tensor.row(0, "float32"), /dtype: expected float32, got int16/);
});

test("test_tensor_refuses_a_shape_of_another_size", () => {
  assert.throws(() => Tensor.of(new Float32Array(3), [2, 2]), /shape: expected sizes for 3 elements, got \[2, 2\]/);
});

test("test_tensor_takes_float16_as_bits", () => {
  const tensor = Tensor.of(Uint16Array.of(0x3800), [1], "float16");
  assert.deepEqual([...tensor.toFloat32()], [0.5]);
  assert.throws(
    () => Tensor.of(Uint8Array.of(0x38), [1], "float16" as "uint8"),
    /dtype: expected a type that a Uint8Array holds/,
  );
});

test("test_columns_name_what_they_have", () => {
  const columns = new Columns([["camera", zeros(1)]]);
  assert.throws(() => columns.plain, /name: expected 'camera', got ''/);
});

test("test_mlp_takes_its_layers_from_the_weights", async () => {
  const mlp = await sentMlp(new MlpAgent(LAYERS, "categorical", { activation: "relu" }));
  assert.deepEqual(mlp.layerSizes, [4, 8, 2]);
  assert.equal(mlp.activation, 2);
  assert.equal(mlp.head.case, "categorical");
  assert.equal(mlp.layerNorm, undefined);
  assert.deepEqual(
    mlp.parameters?.tensors.map(({ name }) => name),
    ["0/weight", "0/bias", "1/weight", "1/bias"],
  );
  assert.deepEqual(mlp.parameters.tensors[0]?.tensor?.shape, [8n, 4n]);
});

test("test_mlp_takes_norm_value_core_and_log_std_from_the_names", async () => {
  const parameters: Parameters = {
    "0/weight": zeros(8, 4),
    "0/bias": zeros(8),
    "0/norm/weight": zeros(8),
    "0/norm/bias": zeros(8),
    "1/weight": zeros(4, 6),
    "1/bias": zeros(4),
    "value/0/weight": zeros(5, 4),
    "value/0/bias": zeros(5),
    "value/1/weight": zeros(1, 5),
    "value/1/bias": zeros(1),
    "core/weight_ih": zeros(18, 8),
    "core/weight_hh": zeros(18, 6),
    "core/bias_ih": zeros(18),
    "core/bias_hh": zeros(18),
  };
  const mlp = await sentMlp(new MlpAgent(parameters, "squashedGaussian", { minLogStd: -5 }));
  assert.deepEqual(mlp.layerSizes, [4, 8, 4]);
  assert.equal(mlp.layerNorm?.epsilon, 1e-5);
  assert.deepEqual(mlp.value.case === "separateValue" && mlp.value.value.hiddenSizes, [5]);
  assert.equal(mlp.core.case === "gru" && mlp.core.value.size, 6);
  assert.equal(mlp.head.case, "squashedGaussian");
  assert.equal(mlp.head.value.predictedLogStd, true);
  assert.equal(mlp.head.value.minLogStd, -5);
});

test("test_mlp_refuses_a_setting_of_another_head", () => {
  assert.throws(
    () => new MlpAgent(LAYERS, "categorical", { epsilon: 0.1 }),
    (error: unknown) => {
      assert.ok(error instanceof InvalidArgumentError);
      assert.equal(error.field, "epsilon");
      assert.equal(error.message, "epsilon: expected undefined for the head categorical, got 0.1");
      return true;
    },
  );
});

test("test_mlp_refuses_parameters_without_layers", async () => {
  await assert.rejects(sent(new MlpAgent({}, "categorical")), /parameters: expected a parameter '0\/weight', got none/);
});

test("test_initial_mlp_fits_the_spaces", async () => {
  const observations = {
    kind: "dict",
    spaces: new Map([["a", { kind: "discrete", n: 3n, start: 0n } satisfies Discrete]]),
  } as const;
  const box = { kind: "box", dtype: "float32", shape: [2], low: zeros(), high: zeros() } as const;
  assert.equal(flatSize(observations), 3);
  const mlp = await sentMlp(MlpAgent.initial(observations, box, { hiddenSizes: [5] }));
  assert.deepEqual(mlp.layerSizes, [3, 5, 2]);
  assert.equal(mlp.head.case === "diagonalGaussian" && mlp.head.value.predictedLogStd, false);
});

test("test_other_agents_are_sent_as_they_are", async () => {
  assert.equal((await sentAgent(new RandomAgent())).case, "random");
  const constant = await sentAgent(new ConstantAgent(Tensor.of(BigInt64Array.of(1n), [])));
  assert.equal(constant.case, "constant");
  assert.deepEqual(constant.value.action[0]?.tensor?.shape, []);
  assert.equal(constant.value.action[0].tensor.dataType, DataType.INT64);
  const onnx = await sentAgent(new OnnxAgent(Uint8Array.of(1), "actions", { outputs: { action: "y" }, infos: ["z"] }));
  assert.equal(onnx.case, "onnx");
  assert.deepEqual([onnx.value.head.case, onnx.value.outputs, onnx.value.infos], ["actions", { action: "y" }, ["z"]]);
  const python = await sentAgent(new PythonAgent("name", { kwargs: { scale: 0.5 } }));
  assert.equal(python.case === "python" && python.value.kwargsJson, '{"scale":0.5}');
});

test("test_parameters_are_sent_alone", async () => {
  const update = await sent({ "0/bias": Tensor.of(Float32Array.of(1, 2)) });
  assert.equal(update.case, "parameters");
  assert.deepEqual([...(update.value.tensors[0]?.tensor?.data ?? [])], [0, 0, 128, 63, 0, 0, 0, 64]);
});

test("test_parameters_of_agents_can_be_read", () => {
  for (const parameters of [LAYERS, new Map(Object.entries(LAYERS))]) {
    const agents = [
      new MlpAgent(parameters, "categorical"),
      new PythonAgent("name", { parameters }),
      new AgentChange({ parameters }),
    ];
    for (const agent of agents) {
      assert.deepEqual([...agent.parameters.keys()], ["0/weight", "0/bias", "1/weight", "1/bias"]);
      assert.deepEqual(agent.parameters.get("0/weight")?.shape, [8, 4]);
    }
  }
  const action = Tensor.of(Float32Array.of(0.5));
  assert.equal(new ConstantAgent(action).action.plain, action);
  assert.equal(new ConstantAgent(new Map([["gas", action]])).action.column("gas"), action);
});

/** An object with undefined for each optional member, which is a `T` only if `T` says so of each. */
type WithUndefined<T> = { [K in keyof T]: object extends Pick<T, K> ? T[K] | undefined : T[K] };

/** Return an object whose members of some names are undefined. */
function undefinedIn<T>(...names: readonly (keyof T)[]): WithUndefined<T> {
  return Object.fromEntries(names.map((name) => [name, undefined])) as WithUndefined<T>;
}

/** Return the requests of calls with options, by their RPCs. */
async function requests(
  [connection, fragments, evaluation, update, call]: readonly [
    ConnectOptions,
    FragmentOptions,
    EvaluationOptions,
    UpdateAgentOptions,
    CallEnvironmentsOptions,
  ],
  agent: Agent,
  env: EnvSpec,
): Promise<object> {
  await using server = await serve(() => [{ code: status.INTERNAL, details: "" }]);
  await using sampler = connect(server.address, { ...connection, shared: true }); // others send their own id
  for (const each of [
    sampler.obtainFragments(1, fragments),
    sampler.evaluate(1n, evaluation),
    sampler.updateAgent(agent, update),
    sampler.updateEnv(env),
    sampler.callEnvironments("method", [], call),
  ]) {
    await assert.rejects(each, ServerError);
  }
  return Object.fromEntries(server.calls.map(({ rpc, request }) => [rpc, request]));
}

test("test_undefined_options_are_as_if_left_out", async () => {
  const options = [
    undefinedIn<ConnectOptions>("ca", "cert", "key", "tls", "token", "tokenFile", "compression", "sampler"),
    undefinedIn<FragmentOptions>("seed", "agent", "signal", "compression", "deliver", "rowStepCount", "temperature"),
    undefinedIn<EvaluationOptions>("env", "policyMaps", "timeoutSeconds", "returnEpisodes", "firstEpisodeIndex"),
    undefinedIn<UpdateAgentOptions>("skipIfIdentical", "signal"),
    undefinedIn<CallEnvironmentsOptions>("envVersion"),
  ] as const;
  const mlp = undefinedIn<MlpSettings>("activation", "normalizationClip", "minLogStd", "epsilon", "actionMask");
  const transforms: Transform[] = [{ clipRewards: { low: undefined, high: 1 } }];
  const env = undefinedIn<Omit<EnvSpec, "id">>("kwargs", "wrappers", "task", "resetOptions", "numRows", "globalState");
  assert.deepEqual(
    await requests(options, new MlpAgent(LAYERS, "categorical", mlp), { ...env, id: "Env-v1", transforms }),
    await requests([{}, {}, {}, {}, {}], new MlpAgent(LAYERS, "categorical"), {
      id: "Env-v1",
      transforms: [{ clipRewards: { high: 1 } }],
    }),
  );
  const onnx = await sentAgent(new OnnxAgent(Uint8Array.of(1), "actions", undefinedIn<OnnxNames>("inputs", "infos")));
  assert.deepEqual(onnx, await sentAgent(new OnnxAgent(Uint8Array.of(1), "actions")));
  const discrete = { kind: "discrete", n: 2n, start: 0n } as const;
  const initial = MlpAgent.initial(discrete, discrete, undefinedIn<InitialMlp>("hiddenSizes", "activation", "random"));
  assert.equal(initial.parameters.size, 6);
});
