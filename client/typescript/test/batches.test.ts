import assert from "node:assert/strict";
import { test } from "node:test";

import { connect, joinParts, ServerError, type EpisodeBatch } from "rollserve";

import { DataType } from "#dist/generated/rollserve/v1/tensor_pb";

import { account, batch, beginning } from "./batches.js";
import { named, response, serve } from "./scripted_server.js";

async function sampled(...messages: readonly Uint8Array[]): Promise<EpisodeBatch> {
  await using server = await serve(() => messages);
  await using sampler = connect(server.address);
  return await sampler.obtainSamples(1);
}

test("test_join_makes_one_segment_of_an_episode_over_three_messages", async () => {
  const joined = await sampled(
    beginning(),
    batch([
      { index: 0, rewards: [1, 2] },
      { index: 1, rewards: [3], ends: false },
    ]),
    batch([{ index: 1, first: 1, rewards: [4, 5], ends: false }]),
    batch([
      { index: 1, first: 3, rewards: [6] },
      { index: 2, rewards: [7] },
    ]),
    account(3, 7),
  );
  assert.deepEqual([...joined.lengths], [2, 4, 1]);
  assert.deepEqual([...joined.returns], [3, 18, 7]);
  assert.deepEqual([...joined.terminated], [1, 1, 1]);
  assert.deepEqual([...joined.episodeIndices], [0n, 1n, 2n]);
  assert.deepEqual([...joined.firstSteps], [0n, 0n, 0n]);
  assert.deepEqual([...joined.starts], [0, 2, 6]);
  assert.deepEqual([...joined.lastObservations.plain.as("float32")], [0, 2, 1, 4, 2, 1]);
  assert.deepEqual([...joined.observations.plain.row(5)], [1, 3]);
  assert.equal(joined.account?.seed, 7n);
});

test("test_join_takes_ends_of_segments_from_the_last_part", async () => {
  const ends = (values: readonly number[]): object => ({
    lastValues: named("", DataType.FLOAT32, [values.length], Float32Array.from(values)).tensor,
    lastStates: [named("h", DataType.FLOAT32, [values.length], Float32Array.from(values))],
  });
  const joined = await sampled(
    beginning(),
    batch([{ index: 0, rewards: [1, 2], ends: false }], ends([5])),
    batch(
      [
        { index: 0, first: 2, rewards: [3] },
        { index: 1, first: 4, rewards: [4] },
      ],
      {
        ...ends([6, 7]),
        returnsBefore: [3, 0.5],
        rawRewards: named("", DataType.FLOAT64, [2], Float64Array.from([30, 40])).tensor,
        environmentActions: [named("", DataType.INT64, [2], BigInt64Array.from([8n, 9n]))],
      },
    ),
    account(2, 4),
  );
  assert.deepEqual([...(joined.lastValues?.as("float32") ?? [])], [6, 7]);
  assert.deepEqual([...joined.lastStates.column("h").as("float32")], [6, 7]);
  assert.deepEqual([...joined.returnsBefore], [0, 0.5]);
  assert.deepEqual([...(joined.rawRewards ?? [])], [1, 2, 30, 40]); // the rewards, where a message has no others
  assert.deepEqual([...(joined.envActions?.plain.as("int64") ?? [])], [1n, 2n, 8n, 9n]);
  assert.deepEqual([...joined.episodeReturns], [33, 40.5]);
});

test("test_returns_before_are_unknown_when_the_server_does_not_tell", async () => {
  const joined = await sampled(
    beginning(),
    batch([
      { index: 0, rewards: [1] },
      { index: 1, first: 4, rewards: [2] },
    ]),
    account(2, 2),
  );
  assert.deepEqual([...joined.returnsBefore], [0, NaN]);
  assert.deepEqual([joined.rawRewards, joined.envActions, joined.lastValues], [undefined, undefined, undefined]);
});

test("test_join_keeps_joined_responses_in_order", async () => {
  const parts = [batch([{ index: 0, rewards: [1] }]), batch([{ index: 1, rewards: [2, 3] }])];
  const joined = await sampled(beginning(), response({ case: "joined", value: { responses: parts } }), account(2, 3));
  assert.deepEqual([...joined.rewards], [1, 2, 3]);
});

test("test_stream_ignores_content_of_later_versions", async () => {
  const later = Uint8Array.of(0xc2, 0x3e, 0x00); // field 1000, without content
  const parts = [later, account(1, 2)];
  const joined = await sampled(
    beginning(),
    later,
    batch([{ index: 0, rewards: [1, 2] }]),
    response({ case: "joined", value: { responses: parts } }),
  );
  assert.deepEqual([...joined.rewards], [1, 2]);
});

test("test_join_fills_gaps_of_infos_and_masks_them", async () => {
  const joined = await sampled(
    beginning(),
    batch([{ index: 0, rewards: [1, 2] }]),
    batch([{ index: 1, rewards: [3] }], { environmentInfos: [named("gap", DataType.INT32, [1], Int32Array.of(9))] }),
    account(2, 3),
  );
  assert.deepEqual([...joined.envInfos.column("gap").as("int32")], [0, 0, 9]);
  assert.deepEqual([...joined.envInfos.column("_gap").as("bool")], [0, 0, 1]);
});

test("test_join_promotes_infos_of_several_types", async () => {
  const joined = await sampled(
    beginning(),
    batch([{ index: 0, rewards: [1] }], { environmentInfos: [named("x", DataType.INT64, [1], BigInt64Array.of(3n))] }),
    batch([{ index: 1, rewards: [2] }], {
      environmentInfos: [named("x", DataType.UINT64, [1], BigUint64Array.of(2n ** 64n - 1n))],
    }),
    account(2, 2),
  );
  assert.deepEqual([...joined.envInfos.column("x").as("uint64")], [3n, 2n ** 64n - 1n]);
  assert.equal(joined.envInfos.has("_x"), false);
});

test("test_join_counts_infos_of_another_shape_as_dropped", async () => {
  const joined = await sampled(
    beginning(),
    batch([{ index: 0, rewards: [1] }], { environmentInfos: [named("x", DataType.INT8, [1], Int8Array.of(1))] }),
    batch([{ index: 1, rewards: [2] }], { environmentInfos: [named("x", DataType.INT8, [1, 2], Int8Array.of(2, 3))] }),
    account(2, 2),
  );
  assert.deepEqual([...joined.envInfos.column("x").as("int8")], [1, 0]);
  assert.deepEqual(joined.account?.droppedInfos, { x: 1n });
});

test("test_join_refuses_an_account_of_other_numbers", async () => {
  await assert.rejects(sampled(beginning(), batch([{ index: 0, rewards: [1] }]), account(1, 2)), (error: unknown) => {
    assert.ok(error instanceof ServerError);
    assert.equal(error.code, "DATA_LOSS");
    assert.match(error.message, /expected 1 episodes that end in 2 steps, as the account says, got 1 in 1/);
    return true;
  });
});

test("test_stream_fails_when_it_ends_without_its_account", async () => {
  await assert.rejects(sampled(beginning(), batch([{ index: 0, rewards: [1] }])), /ended without its account/);
});

test("test_stream_refuses_a_column_with_too_few_bytes", async () => {
  const actions = [named("", DataType.INT64, [3], BigInt64Array.of(1n))];
  const message = batch([{ index: 0, rewards: [1, 2, 3] }], { actions });
  await assert.rejects(sampled(message), /malformed stream: \[''\] data: expected 24 bytes for int64 of shape \[3\]/);
});

test("test_frame_stacks_are_restored_for_several_segments", async () => {
  // Two segments of 2 and 1 steps, and stacks of 2 frames of one number: 4 and 3 frames.
  const frames = named("", DataType.UINT8, [7, 1], Uint8Array.of(0, 1, 2, 3, 10, 11, 12)).tensor;
  const stacks = { observations: [], lastObservations: [], frameStacks: [{ name: "", frameCount: 2, frames }] };
  const first = batch(
    [
      { index: 0, rewards: [1, 2] },
      { index: 1, rewards: [3] },
    ],
    stacks,
  );
  const plain = {
    observations: [named("", DataType.UINT8, [1, 2, 1], Uint8Array.of(20, 21))],
    lastObservations: [named("", DataType.UINT8, [1, 2, 1], Uint8Array.of(21, 22))],
  };
  const joined = await sampled(beginning(), first, batch([{ index: 2, rewards: [4] }], plain), account(3, 4));
  assert.deepEqual(joined.observations.plain.shape, [4, 2, 1]);
  assert.deepEqual([...joined.observations.plain.as("uint8")], [0, 1, 1, 2, 10, 11, 20, 21]);
  assert.deepEqual([...joined.lastObservations.plain.as("uint8")], [2, 3, 11, 12, 21, 22]);
});

test("test_segments_share_the_memory_of_their_batch", async () => {
  const joined = await sampled(
    beginning(),
    batch([
      { index: 0, rewards: [1] },
      { index: 1, rewards: [2, 3] },
    ]),
    account(2, 3),
  );
  const [, second] = [...joined.segments()];
  assert.ok(second);
  assert.deepEqual([...second.rewards], [2, 3]);
  assert.deepEqual([...second.actions.plain.as("int64")], [2n, 3n]);
  second.rewards[0] = 5;
  assert.deepEqual([...joined.rewards], [1, 5, 3]);
});

test("test_parts_of_a_stream_join_like_the_whole", async () => {
  const messages = [
    beginning(),
    batch([{ index: 0, rewards: [1], ends: false }]),
    batch([{ index: 0, first: 1, rewards: [2] }]),
    account(1, 2),
  ];
  await using server = await serve(() => messages);
  await using sampler = connect(server.address);
  const stream = sampler.streamSamples(2);
  const parts: EpisodeBatch[] = [];
  for await (const part of stream) {
    parts.push(part);
  }
  assert.deepEqual(
    parts.map((part) => [...part.lengths]),
    [[1], [1]],
  );
  assert.deepEqual([...joinParts(parts).lengths], [2]);
  assert.equal(stream.account.numSteps, 2n);
});

test("test_row_indices_come_from_the_rows_of_the_beginning", async () => {
  const joined = await sampled(
    beginning({ rowCount: 4n }),
    batch([
      { index: 6, rewards: [1] },
      { index: 9, rewards: [2] },
    ]),
    account(2, 2),
  );
  assert.deepEqual([...(joined.rowIndices ?? [])], [2, 1]);
});

test("test_join_takes_unaligned_columns_of_every_type", async () => {
  const columns = [
    named("bool", DataType.BOOL, [3], Uint8Array.of(0, 1, 1)),
    named("int8", DataType.INT8, [3], Int8Array.of(-128, 0, 127)),
    named("int16", DataType.INT16, [3], Int16Array.of(-32768, 0, 32767)),
    named("int32", DataType.INT32, [3], Int32Array.of(-(2 ** 31), 0, 2 ** 31 - 1)),
    named("int64", DataType.INT64, [3], BigInt64Array.of(-(2n ** 63n), 0n, 2n ** 63n - 1n)),
    named("uint8", DataType.UINT8, [3], Uint8Array.of(0, 1, 255)),
    named("uint16", DataType.UINT16, [3], Uint16Array.of(0, 1, 65535)),
    named("uint32", DataType.UINT32, [3], Uint32Array.of(0, 1, 2 ** 32 - 1)),
    named("uint64", DataType.UINT64, [3], BigUint64Array.of(0n, 1n, 2n ** 64n - 1n)),
    named("float16", DataType.FLOAT16, [3], Uint16Array.of(0x3c00, 0xc000, 0x7bff)),
    named("float32", DataType.FLOAT32, [3], Float32Array.of(0.1, -Infinity, NaN)),
    named("float64", DataType.FLOAT64, [3], Float64Array.of(0.1, -Infinity, 5e-324)),
  ];
  for (let padding = 0; padding < 8; padding += 1) {
    // A name of another length moves the elements of all columns behind it.
    const moved = named("p".repeat(padding + 1), DataType.UINT8, [3], Uint8Array.of(1, 2, 3));
    const message = batch([{ index: 0, rewards: [1, 2, 3] }], { environmentInfos: [moved, ...columns] });
    const { envInfos } = await sampled(beginning(), message, account(1, 3));
    for (const { name, tensor } of columns) {
      const { dtype, data } = envInfos.column(name);
      assert.equal(dtype, name);
      assert.deepEqual(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), tensor.data);
    }
  }
});
