package rollserve_test

import (
	"math"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4"

	rollserve "github.com/rollserve/rollserve/client/go"
	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

func TestEpisodesAreJoinedOverMessages(t *testing.T) {
	first := segments([4]int{4, 0, 2, 1}, [4]int{5, 0, 3, 0})
	first.EpisodeInfos = column("level", tensor(int64s, []int64{40, 50}, 2))
	second := segments([4]int{5, 3, 1, 0})
	second.EpisodeInfos = column("level", tensor(int64s, []int64{50}, 1))
	third := segments([4]int{5, 4, 2, 1}, [4]int{6, 0, 1, 1})
	third.EpisodeInfos = column("level", tensor(int64s, []int64{50, 60}, 2))
	batch, err := obtain(t, 3, 9, first, second, third)
	fatal(t, err)
	same(t, "lengths", batch.Lengths, []int{2, 6, 1})
	same(t, "terminated", batch.Terminated, []bool{true, true, true})
	same(t, "first steps", batch.FirstSteps, []uint64{0, 0, 0})
	same(t, "seeds", batch.EnvSeeds, []uint32{1004, 1005, 1006})
	same(t, "last", values[float32](t, batch.LastObservations[""]), []float32{402, 506, 601})
	same(t, "levels", values[int64](t, batch.EpisodeInfos["level"]), []int64{40, 50, 60})
	same(t, "returns", batch.Returns(), []float64{1, 15, 0})
	same(t, "workers", batch.WorkerIndices == nil && batch.RowIndices == nil, true)
	middle := batch.Segment(1)
	same(t, "observations", values[float32](t, middle.Observations[""]), []float32{500, 501, 502, 503, 504, 505})
	same(t, "shape", middle.Observations[""].Shape, []int{6, 1})
	same(t, "account", batch.Account.NumSteps, int64(9))
	values[float32](t, middle.Observations[""])[0] = -1
	same(t, "shared memory", values[float32](t, batch.Observations[""])[2], float32(-1))
	same(t, "split", len(batch.Split()), 3)
}

func TestEndsOfSegmentsAreJoinedOverMessages(t *testing.T) {
	first, second := segments([4]int{4, 0, 2, 1}, [4]int{5, 0, 3, 0}), segments([4]int{5, 3, 1, 1}, [4]int{6, 2, 1, 1})
	first.LastValues = tensor(float32s, []float32{0, 2}, 2)
	first.LastStates = column("h", tensor(float32s, []float32{1, 2}, 2))
	second.LastValues = tensor(float32s, []float32{3, 4}, 2)
	second.LastStates = column("h", tensor(float32s, []float32{3, 4}, 2))
	second.ReturnsBefore = []float64{3, 0.5}
	second.RawRewards = tensor(float64s, []float64{10, 20}, 2)
	second.EnvironmentActions = column("", tensor(int64s, []int64{8, 9}, 2))
	batch, err := obtain(t, 3, 7, first, second)
	fatal(t, err)
	same(t, "values", values[float32](t, batch.LastValues), []float32{0, 3, 4})
	same(t, "states", values[float32](t, batch.LastStates["h"]), []float32{1, 3, 4})
	same(t, "before", batch.ReturnsBefore, []float64{0, 0, 0.5})
	same(t, "raw rewards", batch.RawRewards[5:], []float64{10, 20})
	same(t, "rewards without others", batch.RawRewards[:5], batch.Rewards[:5])
	same(t, "actions", values[int64](t, batch.EnvActions[""])[5:], []int64{8, 9})
	own := values[int64](t, batch.Actions[""])[:5]
	same(t, "actions without others", values[int64](t, batch.EnvActions[""])[:5], own)
	same(t, "returns", batch.EpisodeReturns()[2], 20.5)
}

func TestReturnsBeforeAreUnknownIfTheServerDoesNotTell(t *testing.T) {
	batch, err := obtain(t, 2, 3, segments([4]int{4, 0, 2, 1}, [4]int{5, 3, 1, 1}))
	fatal(t, err)
	same(t, "known", batch.ReturnsBefore[0], 0.0)
	same(t, "unknown", math.IsNaN(batch.ReturnsBefore[1]), true)
	same(t, "none", batch.RawRewards == nil && batch.EnvActions == nil && batch.LastValues.IsZero(), true)
}

func TestInfosGetMasksWhereMessagesLackThem(t *testing.T) {
	first := segments([4]int{4, 0, 2, 1})
	first.EnvironmentInfos = column("gap", tensor(uint8s, []uint8{7, 0}, 2))
	mask := column("_gap", tensor(bools, []bool{true, false}, 2))
	first.EnvironmentInfos = append(first.EnvironmentInfos, mask...)
	third := segments([4]int{6, 0, 1, 1})
	third.EnvironmentInfos = column("gap", tensor(float32s, []float32{0.5}, 1))
	batch, err := obtain(t, 3, 4, first, segments([4]int{5, 0, 1, 1}), third)
	fatal(t, err)
	same(t, "values", values[float32](t, batch.EnvInfos["gap"]), []float32{7, 0, 0, 0.5})
	same(t, "mask", batch.EnvInfos.Mask("gap"), []bool{true, false, false, true})
}

func TestInfosOfThreeTypesGetTheTypeOfNumpy(t *testing.T) {
	first, second, third := segments([4]int{4, 0, 1, 1}), segments([4]int{5, 0, 1, 1}), segments([4]int{6, 0, 1, 1})
	first.EnvironmentInfos = column("x", tensor(int8s, []int8{-7}, 1))
	second.EnvironmentInfos = column("x", tensor(uint8s, []uint8{255}, 1))
	third.EnvironmentInfos = column("x", tensor(halves, []rollserve.Half{0x3800}, 1))
	batch, err := obtain(t, 3, 3, first, second, third)
	fatal(t, err)
	same(t, "values", values[rollserve.Half](t, batch.EnvInfos["x"]), []rollserve.Half{0xc700, 0x5bf8, 0x3800})
}

func TestInfosOfOtherShapesAreDroppedAndCounted(t *testing.T) {
	first, second := segments([4]int{4, 0, 1, 1}), segments([4]int{5, 0, 2, 1})
	first.EnvironmentInfos = column("x", tensor(int64s, []int64{1}, 1))
	second.EnvironmentInfos = column("x", tensor(int64s, []int64{1, 2, 3, 4}, 2, 2))
	batch, err := obtain(t, 2, 3, first, second)
	fatal(t, err)
	same(t, "values", values[int64](t, batch.EnvInfos["x"]), []int64{1, 0, 0})
	same(t, "dropped", batch.Account.DroppedInfos, map[string]int64{"x": 2})
}

func TestFramesThatComeOnceMakeTheSameStacks(t *testing.T) {
	message := segments([4]int{4, 0, 2, 1}, [4]int{5, 0, 1, 1})
	message.Observations, message.LastObservations = nil, nil
	message.FrameStacks = []*pb.FrameStack{{
		Name: "camera", FrameCount: 3,
		Frames: tensor(uint8s, []uint8{1, 2, 3, 4, 5, 11, 12, 13, 14}, 9, 1),
	}}
	batch, err := obtain(t, 2, 3, message)
	fatal(t, err)
	stacks := batch.Observations["camera"]
	same(t, "shape", stacks.Shape, []int{3, 3, 1})
	same(t, "stacks", values[uint8](t, stacks), []uint8{1, 2, 3, 2, 3, 4, 11, 12, 13})
	same(t, "last", values[uint8](t, batch.LastObservations["camera"]), []uint8{3, 4, 5, 12, 13, 14})

	message.FrameStacks[0].Frames = tensor(uint8s, make([]uint8, 8), 8, 1)
	_, err = obtain(t, 2, 3, message)
	isServerError(t, err, "expected 9 frames")
}

func TestEveryDataTypeHasItsGoType(t *testing.T) {
	exact(t, rollserve.Bool, []bool{true, false})
	exact(t, rollserve.Int8, []int8{-128, 127})
	exact(t, rollserve.Int16, []int16{-1 << 15, 1<<15 - 1})
	exact(t, rollserve.Int32, []int32{-1 << 31, 1<<31 - 1})
	exact(t, rollserve.Int64, []int64{-1 << 63, 1<<63 - 1})
	exact(t, rollserve.Uint8, []uint8{0, 255})
	exact(t, rollserve.Uint16, []uint16{0, 1<<16 - 1})
	exact(t, rollserve.Uint32, []uint32{0, 1<<32 - 1})
	exact(t, rollserve.Uint64, []uint64{0, 1<<64 - 1})
	exact(t, rollserve.Float16, []rollserve.Half{0x3c00, 0xfbff})
	exact(t, rollserve.Float32, []float32{math.SmallestNonzeroFloat32, -math.MaxFloat32})
	exact(t, rollserve.Float64, []float64{math.SmallestNonzeroFloat64, -math.MaxFloat64})
	same(t, "halves", []float32{
		rollserve.Half(0x3c00).Float32(), rollserve.Half(0xfbff).Float32(), rollserve.Half(0x0001).Float32(),
		rollserve.Half(0x8000).Float32(), rollserve.Half(0x7c00).Float32(),
	}, []float32{1, -65504, 1.0 / (1 << 24), float32(math.Copysign(0, -1)), float32(math.Inf(1))})
}

// exact checks a type as a column of a message and as bytes, where one value is aligned and none is changed.
func exact[T rollserve.Element](t *testing.T, dataType rollserve.DataType, numbers []T) {
	t.Helper()
	message := segments([4]int{4, 0, len(numbers), 1})
	number := pb.DataType_value["DATA_TYPE_"+strings.ToUpper(string(dataType))]
	message.AgentInfos = column("x", tensor(pb.DataType(number), numbers, len(numbers)))
	batch, err := obtain(t, 1, len(numbers), message)
	fatal(t, err)
	array := batch.AgentInfos["x"]
	same(t, "type", array.DataType, dataType)
	same(t, string(dataType), values[T](t, array), numbers)
	same(t, "bytes", len(array.Bytes()), len(numbers)*dataType.Size())
	scalar, err := rollserve.ArrayFromBytes(dataType, nil, array.Bytes()[:dataType.Size()])
	fatal(t, err)
	same(t, string(dataType), values[T](t, scalar), numbers[:1])
	if _, err := rollserve.Values[float64](scalar); dataType != rollserve.Float64 {
		isInvalid(t, err, "T")
	}
}

func TestArraysFromBytesShareTheirMemory(t *testing.T) {
	data := make([]byte, 24)
	array, err := rollserve.ArrayFromBytes(rollserve.Float32, []int{3, 2}, data)
	fatal(t, err)
	values[float32](t, array.Rows(2, 3))[1] = 1
	same(t, "bytes", data[20:], rollserve.NewArray([]float32{1}).Bytes())
	for field, wrong := range map[string]func() (rollserve.Array, error){
		"dataType": func() (rollserve.Array, error) { return rollserve.ArrayFromBytes("float8", nil, nil) },
		"shape":    func() (rollserve.Array, error) { return rollserve.ArrayFromBytes(rollserve.Bool, []int{-1}, nil) },
		"data":     func() (rollserve.Array, error) { return rollserve.ArrayFromBytes(rollserve.Bool, nil, data) },
	} {
		_, err := wrong()
		isInvalid(t, err, field)
	}
}

func TestZeroArrayIsNone(t *testing.T) {
	var none rollserve.Array
	same(t, "zero", []any{none.IsZero(), none.Len(), none.Size(), len(none.Bytes())}, []any{true, 0, 0, 0})
	same(t, "text", none.String(), "no array")
	same(t, "scalar", rollserve.Scalar(0.0).IsZero(), false)
	_, err := rollserve.Values[float32](none)
	isInvalid(t, err, "T")
}

func TestZeroValuesAreEmpty(t *testing.T) {
	var batch, other rollserve.EpisodeBatch
	joined, err := rollserve.Concatenate(&batch, &other)
	fatal(t, err)
	for _, each := range []*rollserve.EpisodeBatch{&batch, joined, batch.Joined()} {
		same(t, "batch", each.String(), "EpisodeBatch(0 segments, 0 steps, 0 ended)")
		same(t, "parts", len(each.EpisodeReturns())+len(each.Split()), 0)
	}
	var many, otherMany rollserve.MultiAgentBatch
	whole, err := rollserve.ConcatenateMany(&many, &otherMany)
	fatal(t, err)
	for _, each := range []*rollserve.MultiAgentBatch{&many, whole} {
		byPolicy, err := each.ByPolicy()
		fatal(t, err)
		byAgent, err := each.ByAgent()
		fatal(t, err)
		same(t, "views", len(byPolicy)+len(byAgent)+len(each.Joint())+each.NumAgentSteps(), 0)
	}
	var returns rollserve.AgentReturns
	same(t, "returns", len(returns.ByAgent())+len(returns.ByPolicy()), 0)
	same(t, "means", len((&rollserve.PopulationEvaluation{}).MeanReturns()), 0)
	same(t, "workers", (&rollserve.Status{}).NumWorkers(), 0)
}

func TestMalformedBatchesAreServerErrors(t *testing.T) {
	badBool, oneByte := tensor(bools, []uint8{2}, 1), tensor(int8s, []int8{1}, 1)
	for text, spoil := range map[string]func(*pb.EpisodeBatch){
		"rewards: expected 2 steps":         func(b *pb.EpisodeBatch) { b.Lengths[0] = 2 },
		"lengths[0]: expected at least 1":   func(b *pb.EpisodeBatch) { b.Lengths[0] = 0 },
		"terminated: expected 1 values":     func(b *pb.EpisodeBatch) { b.Terminated = nil },
		"truth values of 0 or 1":            func(b *pb.EpisodeBatch) { b.Actions[0].Tensor = badBool },
		"data: expected 8 bytes":            func(b *pb.EpisodeBatch) { b.Rewards.Data = b.Rewards.Data[1:] },
		"product is at most 2^59":           func(b *pb.EpisodeBatch) { b.Rewards.Shape = []int64{1 << 31, 1 << 31} },
		"data_type: expected a member":      func(b *pb.EpisodeBatch) { b.Rewards.DataType = 99 },
		"this name twice":                   func(b *pb.EpisodeBatch) { b.Actions = append(b.Actions, b.Actions[0]) },
		"rows as in observations":           func(b *pb.EpisodeBatch) { b.LastObservations[0].Tensor = oneByte },
		"compression: expected a member of": func(b *pb.EpisodeBatch) { b.Rewards.Compression = 99 },
		"enough bytes for 268435448": func(b *pb.EpisodeBatch) {
			b.Rewards.Compression, b.Rewards.Shape[0] = pb.Compression_COMPRESSION_LZ4, 1<<25-1
		},
	} {
		message := segments([4]int{4, 0, 1, 1})
		spoil(message)
		_, err := obtain(t, 1, 1, message)
		isServerError(t, err, text)
	}
	_, err := obtain(t, 2, 1, segments([4]int{4, 0, 1, 1}))
	isServerError(t, err, "account: expected")
}

func TestCompressedColumnsAreTheSame(t *testing.T) {
	message := segments([4]int{4, 0, 4000, 1})
	plain := append([]byte{}, message.Observations[0].Tensor.Data...)
	block := make([]byte, lz4.CompressBlockBound(len(plain)))
	size, err := lz4.CompressBlock(plain, block, make([]int, 1<<16))
	fatal(t, err)
	writer, err := zstd.NewWriter(nil)
	fatal(t, err)
	for compression, data := range map[pb.Compression][]byte{
		pb.Compression_COMPRESSION_LZ4:  block[:size],
		pb.Compression_COMPRESSION_ZSTD: writer.EncodeAll(plain, nil),
	} {
		column := message.Observations[0].Tensor
		column.Compression, column.Data = compression, data
		batch, err := obtain(t, 1, 4000, message)
		fatal(t, err)
		same(t, compression.String(), values[float32](t, batch.Observations[""])[3999], float32(4399))
		for _, cut := range [][]byte{data[:len(data)/2], append(append([]byte{}, data...), 1, 2, 3)} {
			column.Data = cut
			_, err = obtain(t, 1, 4000, message)
			isServerError(t, err, "data: expected 16000 bytes")
		}
	}
}
