#include "onnx_model.h"

#include "onnx.pb.h"

namespace {

constexpr int ir_version = 8;      // of ONNX 1.12; older runtimes do not read newer models
constexpr int opset_version = 13;  // has everything that is needed
constexpr int float_type = 1;      // FLOAT of ONNX's data types

/// Describe an input or output with any number of rows.
void describe(onnx::ValueInfoProto& value, const std::string& name, std::int64_t num_columns) {
  value.set_name(name);
  auto& tensor = *value.mutable_type()->mutable_tensor_type();
  tensor.set_elem_type(float_type);
  tensor.mutable_shape()->add_dim()->set_dim_param("N");
  tensor.mutable_shape()->add_dim()->set_dim_value(num_columns);
}

}  // namespace

std::string onnx_model(const rollserve::Parameters& parameters) {
  onnx::ModelProto model;
  model.set_ir_version(ir_version);
  model.set_producer_name("rollserve-example");
  model.add_opset_import()->set_version(opset_version);
  onnx::GraphProto& graph = *model.mutable_graph();
  graph.set_name("policy");
  for (const auto& [name, array] : parameters) {
    onnx::TensorProto& initializer = *graph.add_initializer();
    initializer.set_name(name);
    initializer.set_data_type(float_type);
    initializer.mutable_dims()->Add(array.shape().begin(), array.shape().end());
    initializer.set_raw_data(array.bytes().data(), array.bytes().size());
  }
  std::string input = "observation";
  describe(*graph.add_input(), input, parameters.at("0/weight").shape()[1]);
  for (int layer = 0; parameters.contains(std::to_string(layer) + "/weight"); ++layer) {
    const std::string prefix = std::to_string(layer) + "/";
    const bool is_last = !parameters.contains(std::to_string(layer + 1) + "/weight");
    const std::string sum = is_last ? "logits" : prefix + "sum";
    onnx::NodeProto& gemm = *graph.add_node();
    gemm.set_op_type("Gemm");
    for (const std::string& name : {input, prefix + "weight", prefix + "bias"}) gemm.add_input(name);
    gemm.add_output(sum);
    onnx::AttributeProto& transposed = *gemm.add_attribute();
    transposed.set_name("transB");
    transposed.set_type(onnx::AttributeProto::INT);
    transposed.set_i(1);
    if (is_last) {
      describe(*graph.add_output(), sum, parameters.at(prefix + "weight").shape()[0]);
      break;
    }
    input = prefix + "output";
    onnx::NodeProto& tanh = *graph.add_node();
    tanh.set_op_type("Tanh");
    tanh.add_input(sum);
    tanh.add_output(input);
  }
  return model.SerializeAsString();
}
