package io.github.rollserve;

import static io.github.rollserve.ScriptedServer.obtain;
import static io.github.rollserve.Wire.named;
import static io.github.rollserve.Wire.segments;
import static io.github.rollserve.Wire.tensor;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.github.luben.zstd.Zstd;
import com.google.protobuf.ByteString;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;
import net.jpountz.lz4.LZ4Factory;
import org.junit.jupiter.api.Test;

class BatchTest {
    @Test
    void batchHasWholeEpisodesWhenTheyComeInSeveralMessages() {
        EpisodeBatch batch = obtain(3, 9,
            segments("4:0+2.", "5:0+3").addEpisodeInfos(named("level", tensor(DataType.INT64, new Number[] {40, 50}))),
            segments("5:3+1").addEpisodeInfos(named("level", tensor(DataType.INT64, new Number[] {50}))),
            segments("5:4+2.", "6:0+1.")
                .addEpisodeInfos(named("level", tensor(DataType.INT64, new Number[] {50, 60}))));
        assertArrayEquals(new int[] {2, 6, 1}, batch.lengths());
        assertArrayEquals(new boolean[] {true, true, true}, batch.terminated());
        assertArrayEquals(new long[] {0, 0, 0}, batch.firstSteps());
        assertArrayEquals(new int[] {1004, 1005, 1006}, batch.envSeeds());
        assertArrayEquals(new double[] {402, 506, 601}, batch.lastObservations().plain().toDoubles());
        assertArrayEquals(new double[] {40, 50, 60}, batch.episodeInfos().get("level").toDoubles());
        assertArrayEquals(new double[] {1, 15, 0}, batch.returns());
        assertArrayEquals(new long[0], batch.rowIndices());
        assertEquals(9, batch.account().orElseThrow().numSteps());
        Tensor middle = batch.segment(1).observations().plain();
        assertArrayEquals(new double[] {500, 501, 502, 503, 504, 505}, middle.toDoubles());
        assertArrayEquals(new int[] {6, 1}, middle.shape());
        assertEquals(3, batch.split().size());
    }

    /** Returns a segment whose raw rewards are its rewards plus 0.25, with a value and a state at its end. */
    private static io.github.rollserve.v1.EpisodeBatch.Builder withEnd(String segment, double value) {
        io.github.rollserve.v1.EpisodeBatch.Builder batch = segments(segment);
        int first = (int) batch.getFirstSteps(0);
        Number[] raw = new Number[batch.getLengths(0)];
        Arrays.setAll(raw, step -> first + step + 0.25);
        return batch.setRawRewards(tensor(DataType.FLOAT64, raw))
            .setLastValues(tensor(DataType.FLOAT32, new Number[] {value}))
            .addLastStates(named("h", tensor(DataType.FLOAT32, new Number[] {value, -value}, 1, 2)));
    }

    @Test
    void endsOfSegmentsComeFromTheirLastParts() {
        EpisodeBatch batch = obtain(2, 5,
            withEnd("4:0+2", 1), withEnd("4:2+2.", 2).addReturnsBefore(1.5), withEnd("5:0+1.", 3));
        assertArrayEquals(new int[] {4, 1}, batch.lengths());
        assertArrayEquals(new double[] {2, 3}, batch.lastValues().orElseThrow().toDoubles());
        assertArrayEquals(new double[] {2, -2, 3, -3}, batch.lastStates().get("h").toDoubles());
        assertArrayEquals(new double[] {0, 0}, batch.returnsBefore());
        assertArrayEquals(new double[] {7, 0.25}, batch.rawReturns());
        assertArrayEquals(new double[] {6, 0}, batch.returns());

        EpisodeBatch last = batch.segment(1);
        assertArrayEquals(new double[] {3}, last.lastValues().orElseThrow().toDoubles());
        assertArrayEquals(new double[] {3, -3}, last.lastStates().get("h").toDoubles());
        assertArrayEquals(new double[] {0.25}, last.rawRewards().orElseThrow().toDoubles());
    }

    @Test
    void returnsOfEpisodesHaveTheStepsOfEarlierCalls() {
        EpisodeBatch told = obtain(0, 2, withEnd("4:3+2", 0).addReturnsBefore(10));
        assertArrayEquals(new double[] {17.5}, told.episodeReturns());
        EpisodeBatch batch = obtain(1, 3, withEnd("4:3+2", 0), segments("5:0+1.")); // an older server does not tell
        assertArrayEquals(new double[] {Double.NaN, 0}, batch.returnsBefore());
        assertTrue(Double.isNaN(batch.episodeReturns()[0]));
    }

    @Test
    void rewardsAndActionsOfTheEnvironmentAreTheAgentsWhenMessagesLackThem() {
        io.github.rollserve.v1.EpisodeBatch.Builder changed = withEnd("4:0+2.", 1)
            .addEnvironmentActions(named("", tensor(DataType.INT64, new Number[] {7, 8})));
        io.github.rollserve.v1.EpisodeBatch.Builder plain = segments("5:0+2.");
        for (int position : new int[] {0, 1}) {
            EpisodeBatch batch = position == 0 ? obtain(2, 4, changed, plain) : obtain(2, 4, plain, changed);
            EpisodeBatch own = batch.segment(position);
            EpisodeBatch other = batch.segment(1 - position);
            assertArrayEquals(new double[] {0.25, 1.25}, own.rawRewards().orElseThrow().toDoubles());
            assertArrayEquals(new double[] {0, 1}, other.rawRewards().orElseThrow().toDoubles());
            assertArrayEquals(new double[] {7, 8}, own.envActions().plain().toDoubles());
            assertArrayEquals(new double[] {0, 1}, other.envActions().plain().toDoubles());
            assertEquals(Optional.empty(), batch.lastValues());
            assertEquals(position == 0, batch.lastStates().mask("h").orElseThrow()[0]);
        }
        EpisodeBatch without = obtain(2, 4, plain, segments("6:0+2."));
        assertEquals(Optional.empty(), without.rawRewards());
        assertEquals(Map.of(), without.envActions().tensors());
    }

    @Test
    void numbersAreLittleEndianWhereverTheyBegin() {
        byte[] oneAndAHalf = {0, 0, (byte) 0xc0, 0x3f};
        io.github.rollserve.v1.EpisodeBatch.Builder message = segments("4:0+1.").setLastValues(
            io.github.rollserve.v1.Tensor.newBuilder()
                .setDataType(io.github.rollserve.v1.DataType.DATA_TYPE_FLOAT32)
                .addShape(1)
                .setData(ByteString.copyFrom(oneAndAHalf)));
        for (String name : List.of("", "x", "xy", "xyz")) { // which moves what follows within the message
            message.addAgentInfos(named(name, tensor(DataType.INT8, new Number[] {1})));
            EpisodeBatch batch = obtain(1, 1, message);
            assertEquals(1.5f, batch.lastValues().orElseThrow().floats().get(0));
            assertEquals(0, batch.rewards().doubles().get(0));
            assertEquals(400, batch.observations().plain().floats().get(0));
        }
    }

    @Test
    void textsAmongInfosHaveTheirBytes() {
        byte[] bytes = "hö\0\0\0\0\0goal".getBytes(StandardCharsets.UTF_8);
        Number[] texts = new Number[bytes.length];
        Arrays.setAll(texts, i -> bytes[i]);
        Columns infos = obtain(1, 3, segments("4:0+3.")
            .addEnvironmentInfos(named("text/event", tensor(DataType.UINT8, texts, 3, 4)))
            .addEnvironmentInfos(named("_text/event", tensor(DataType.BOOL, new Number[] {1, 0, 1})))
            .addEnvironmentInfos(named("json/none", tensor(DataType.UINT8, new Number[0], 3, 0)))).envInfos();
        assertEquals(List.of(Optional.of("hö"), Optional.empty(), Optional.of("goal")), infos.texts("text/event"));
        assertEquals(List.of(Optional.of(""), Optional.of(""), Optional.of("")), infos.texts("json/none"));
        for (String name : List.of("_text/event", "event")) {
            assertEquals("name", assertThrows(InvalidArgumentException.class, () -> infos.texts(name)).field());
        }
    }

    @Test
    void infosHaveMasksWhenMessagesLackThem() {
        EpisodeBatch batch = obtain(3, 4,
            segments("4:0+2.")
                .addEnvironmentInfos(named("gap", tensor(DataType.UINT8, new Number[] {7, 0})))
                .addEnvironmentInfos(named("_gap", tensor(DataType.BOOL, new Number[] {1, 0}))),
            segments("5:0+1."),
            segments("6:0+1.").addEnvironmentInfos(named("gap", tensor(DataType.FLOAT32, new Number[] {0.5}))));
        Tensor gap = batch.envInfos().get("gap");
        assertEquals(DataType.FLOAT32, gap.dataType());
        assertArrayEquals(new double[] {7, 0, 0, 0.5}, gap.toDoubles());
        assertArrayEquals(new boolean[] {true, false, false, true}, batch.envInfos().mask("gap").orElseThrow());
        assertEquals(Optional.empty(), batch.segment(2).agentInfos().mask("gap"));
    }

    @Test
    void leavesAreNoMasksWhenTheirNamesLookLikeThem() {
        io.github.rollserve.v1.Tensor.Builder one = tensor(DataType.BOOL, new Number[] {1});
        EpisodeBatch batch = obtain(1, 1, segments("4:0+1.")
            .addObservations(named("_", one))
            .addLastObservations(named("_", one)));
        assertArrayEquals(new boolean[] {true}, batch.observations().get("_").booleans());
    }

    @Test
    void infosAreDroppedAndCountedWhenTheyHaveOtherShapes() {
        io.github.rollserve.v1.Tensor.Builder pairs = tensor(DataType.INT64, new Number[] {1, 2, 3, 4}, 2, 2);
        EpisodeBatch batch = obtain(2, 3,
            segments("4:0+1.").addEnvironmentInfos(named("x", tensor(DataType.INT64, new Number[] {1}))),
            segments("5:0+2.").addEnvironmentInfos(named("x", pairs)));
        assertArrayEquals(new double[] {1, 0, 0}, batch.envInfos().get("x").toDoubles());
        assertEquals(Map.of("x", 2L), batch.account().orElseThrow().droppedInfos());
    }

    @Test
    void infosGetTheTypeThatAllOfThemFitInto() {
        Map<DataType[], DataType> types = new LinkedHashMap<>();
        types.put(new DataType[] {DataType.BOOL, DataType.INT8}, DataType.INT8);
        types.put(new DataType[] {DataType.UINT8, DataType.INT8}, DataType.INT16);
        types.put(new DataType[] {DataType.UINT8, DataType.FLOAT16}, DataType.FLOAT16);
        types.put(new DataType[] {DataType.INT16, DataType.FLOAT16}, DataType.FLOAT32);
        types.put(new DataType[] {DataType.UINT64, DataType.INT64}, DataType.UINT64);
        types.forEach((pair, expected) -> {
            Number one = pair[1] == DataType.FLOAT16 ? 0x3c00 : 1;
            EpisodeBatch batch = obtain(2, 2,
                segments("4:0+1.").addAgentInfos(named("x", tensor(pair[0], new Number[] {1}))),
                segments("5:0+1.").addAgentInfos(named("x", tensor(pair[1], new Number[] {one}))));
            assertEquals(expected, batch.agentInfos().get("x").dataType());
            assertArrayEquals(new double[] {1, 1}, batch.agentInfos().get("x").toDoubles(), expected.toString());
        });
    }

    @Test
    void framesMakeStacksWhenTheyComeOnce() {
        io.github.rollserve.v1.FrameStack.Builder frames = io.github.rollserve.v1.FrameStack.newBuilder()
            .setName("camera")
            .setFrameCount(3)
            .setFrames(tensor(DataType.UINT8, new Number[] {1, 2, 3, 4, 5, 11, 12, 13, 14}, 9, 1));
        io.github.rollserve.v1.EpisodeBatch.Builder message =
            segments("4:0+2.", "5:0+1.").clearObservations().clearLastObservations().addFrameStacks(frames);
        EpisodeBatch batch = obtain(2, 3, message);
        Tensor stacks = batch.observations().get("camera");
        assertArrayEquals(new int[] {3, 3, 1}, stacks.shape());
        assertArrayEquals(new double[] {1, 2, 3, 2, 3, 4, 11, 12, 13}, stacks.toDoubles());
        assertArrayEquals(
            new double[] {3, 4, 5, 12, 13, 14}, batch.lastObservations().get("camera").toDoubles());
        EpisodeBatch twice = EpisodeBatch.concatenate(List.of(obtain(2, 3, message), batch));
        assertArrayEquals(new double[] {11, 12, 13}, twice.observations().get("camera").rows(5, 6).toDoubles());

        message.getFrameStacksBuilder(0).setFrames(tensor(DataType.UINT8, new Number[] {1, 2, 3, 4, 5, 6, 7, 8}, 8, 1));
        assertMalformed("expected 9 frames", () -> obtain(2, 3, message));
    }

    @Test
    void everyDataTypeKeepsItsBits() {
        Map<DataType, Number[]> extremes = new LinkedHashMap<>();
        extremes.put(DataType.BOOL, new Number[] {0, 1});
        extremes.put(DataType.INT8, new Number[] {-128, 127});
        extremes.put(DataType.INT16, new Number[] {Short.MIN_VALUE, Short.MAX_VALUE});
        extremes.put(DataType.INT32, new Number[] {Integer.MIN_VALUE, Integer.MAX_VALUE});
        extremes.put(DataType.INT64, new Number[] {Long.MIN_VALUE, Long.MAX_VALUE});
        extremes.put(DataType.UINT8, new Number[] {0, 255});
        extremes.put(DataType.UINT16, new Number[] {0, 65535});
        extremes.put(DataType.UINT32, new Number[] {0, 0xffff_ffffL});
        extremes.put(DataType.UINT64, new Number[] {0, -1L});
        extremes.put(DataType.FLOAT16, new Number[] {0x0001, 0xfbff});
        extremes.put(DataType.FLOAT32, new Number[] {Float.MIN_VALUE, -Float.MAX_VALUE});
        extremes.put(DataType.FLOAT64, new Number[] {Double.MIN_VALUE, -Double.MAX_VALUE});
        Map<DataType, double[]> others = Map.of(
            DataType.UINT64, new double[] {0, 0x1p64},
            DataType.FLOAT16, new double[] {0x1p-24, -65504});
        extremes.forEach((type, values) -> {
            io.github.rollserve.v1.Tensor.Builder sent = tensor(type, values);
            Tensor got = obtain(1, 2, segments("4:0+2.").addAgentInfos(named("x", sent))).agentInfos().get("x");
            assertEquals(type, got.dataType());
            assertEquals(sent.getData().asReadOnlyByteBuffer(), got.bytes());
            double[] numbers = Arrays.stream(values).mapToDouble(Number::doubleValue).toArray();
            assertArrayEquals(others.getOrDefault(type, numbers), got.toDoubles(), type.toString());
            if (type != DataType.FLOAT64) {
                assertThrows(InvalidArgumentException.class, got::doubles);
            }
        });
    }

    @Test
    void tensorHasTheElementsOfItsArrayAndChecksItsShape() {
        assertEquals(2.5f, Tensor.of(new float[] {1, 2.5f}, 2, 1).floats().get(1));
        assertEquals(-7, Tensor.of(new long[] {-7}).longs().get(0));
        assertEquals(-7, Tensor.of(new int[] {-7}).ints().get(0));
        assertArrayEquals(new boolean[] {true, false}, Tensor.of(new boolean[] {true, false}).booleans());
        assertArrayEquals(new int[0], Tensor.scalar(3).shape());
        InvalidArgumentException error =
            assertThrows(InvalidArgumentException.class, () -> Tensor.of(new double[] {1, 2}, 3));
        assertEquals("shape", error.field());
    }

    @Test
    void malformedBatchesAreServerExceptions() {
        io.github.rollserve.v1.Tensor.Builder twoBytes = tensor(DataType.BOOL, new Number[] {2});
        Map<String, Consumer<io.github.rollserve.v1.EpisodeBatch.Builder>> faults = new LinkedHashMap<>();
        faults.put("rewards: expected 2 steps", batch -> batch.setLengths(0, 2));
        faults.put("lengths[0]: expected 1", batch -> batch.setLengths(0, 0));
        faults.put("terminated: expected 1 values", io.github.rollserve.v1.EpisodeBatch.Builder::clearTerminated);
        faults.put("truth values of 0 or 1", batch -> batch.getActionsBuilder(0).setTensor(twoBytes));
        faults.put("data: expected 8 bytes", batch -> batch.getRewardsBuilder().setData(ByteString.EMPTY));
        faults.put("whose product is below", batch -> batch.getRewardsBuilder().addShape(1L << 40));
        faults.put("data_type: expected a member", batch -> batch.getRewardsBuilder().setDataTypeValue(99));
        faults.put("this name twice", batch -> batch.addActions(batch.getActions(0)));
        faults.put("rows as in float32", batch ->
            batch.getLastObservationsBuilder(0).setTensor(tensor(DataType.INT8, new Number[] {1})));
        faults.put("a member of Compression", batch -> batch.getRewardsBuilder().setCompressionValue(99));
        faults.put("returns_before: expected 1 values", batch -> batch.addReturnsBefore(0).addReturnsBefore(0));
        faults.put("raw_rewards['']: expected 1 rows", batch ->
            batch.setRawRewards(tensor(DataType.FLOAT64, new Number[] {1, 2})));
        faults.put("raw_rewards: expected float64", batch ->
            batch.setRawRewards(tensor(DataType.FLOAT32, new Number[] {1})));
        faults.put("raw_rewards[''].data: expected 8 bytes", batch ->
            batch.setRawRewards(tensor(DataType.FLOAT64, new Number[0], 1)));
        faults.put("environment_actions['']: expected 1 rows", batch ->
            batch.addEnvironmentActions(named("", tensor(DataType.INT64, new Number[] {1, 2}))));
        faults.put("last_values: expected one axis", batch ->
            batch.setLastValues(tensor(DataType.FLOAT32, new Number[] {1}, 1, 1)));
        faults.put("last_values[''].shape: expected sizes", batch ->
            batch.setLastValues(tensor(DataType.FLOAT32, new Number[0], 0, 1L << 60, 16)));
        faults.put("last_states['h'].shape: expected sizes", batch ->
            batch.addLastStates(named("h", tensor(DataType.FLOAT32, new Number[] {1}, -1, -1))));
        faults.put("account: expected", batch -> batch.setTerminated(0, false));
        faults.forEach((text, spoil) -> {
            io.github.rollserve.v1.EpisodeBatch.Builder batch = segments("4:0+1.");
            spoil.accept(batch);
            assertMalformed(text, () -> obtain(1, 1, batch));
        });
    }

    @Test
    void compressedColumnsAreReadAndCheckedAgainstTheirShape() {
        io.github.rollserve.v1.EpisodeBatch.Builder message = segments("4:0+4000.");
        io.github.rollserve.v1.Tensor.Builder column = message.getObservationsBuilder(0).getTensorBuilder();
        byte[] plain = column.getData().toByteArray();
        Map<io.github.rollserve.v1.Compression, byte[]> codecs = Map.of(
            io.github.rollserve.v1.Compression.COMPRESSION_LZ4,
            LZ4Factory.safeInstance().fastCompressor().compress(plain),
            io.github.rollserve.v1.Compression.COMPRESSION_ZSTD,
            Zstd.compress(plain));
        codecs.forEach((codec, compressed) -> {
            column.setCompression(codec).setData(ByteString.copyFrom(compressed));
            assertEquals(4399, obtain(1, 4000, message).observations().plain().floats().get(3999));
            for (int length : new int[] {compressed.length / 2, compressed.length + 3}) {
                column.setData(ByteString.copyFrom(Arrays.copyOf(compressed, length)));
                assertMalformed("16000 bytes, compressed by", () -> obtain(1, 4000, message));
            }
        });
        column.setCompression(io.github.rollserve.v1.Compression.COMPRESSION_LZ4).setData(ByteString.copyFromUtf8("x"));
        assertMalformed("enough bytes for 16000", () -> obtain(1, 4000, message));
    }

    private static void assertMalformed(String text, Runnable call) {
        ServerException error = assertThrows(ServerException.class, call::run);
        assertTrue(error.getMessage().contains(text), error.getMessage());
    }
}
