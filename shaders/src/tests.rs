//! Every shader is parsed, validated and written in the three languages that drivers take.

use std::fs;

use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{AddressSpace, Module, StorageAccess};

use super::*;

fn parse(shader: Shader) -> Module {
    let source = shader.source();
    naga::front::wgsl::parse_str(&source).unwrap_or_else(|e| panic!("{shader}: {}", e.emit_to_string(&source)))
}

fn validate(shader: Shader, module: &Module) -> naga::valid::ModuleInfo {
    // Subgroups, for the shaders that say so, and plain WebGPU, of which unpack2x16float is a part.
    let capabilities = Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator.validate(module).unwrap_or_else(|e| panic!("{shader}: {}", e.emit_to_string(&shader.source())))
}

#[test]
fn every_shader_is_valid_and_written_as_spirv_msl_and_hlsl() {
    for shader in Shader::all() {
        let module = parse(shader);
        let info = validate(shader, &module);
        let constants = naga::back::PipelineConstants::default();
        let (module, info) = naga::back::pipeline_constants::process_overrides(&module, &info, None, &constants)
            .unwrap_or_else(|e| panic!("{shader}: {e}"));
        let words = spv::write_vec(&module, &info, &spv::Options::default(), None)
            .unwrap_or_else(|e| panic!("{shader} as SPIR-V: {e}"));
        assert_eq!(words[0], 0x0723_0203, "{shader} as SPIR-V begins with its magic number");

        let options = msl::Options { lang_version: (2, 4), fake_missing_bindings: true, ..Default::default() };
        let (text, _) = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default())
            .unwrap_or_else(|e| panic!("{shader} as MSL: {e}"));
        assert!(text.contains("kernel void"), "{shader} as MSL:\n{text}");

        let options = hlsl::Options { shader_model: hlsl::ShaderModel::V6_4, ..Default::default() };
        let mut text = String::new();
        hlsl::Writer::new(&mut text, &options, &hlsl::PipelineOptions::default())
            .write(&module, &info, None)
            .unwrap_or_else(|e| panic!("{shader} as HLSL: {e}"));
        assert!(text.contains("[numthreads("), "{shader} as HLSL:\n{text}");
    }
}

#[test]
fn bindings_are_what_the_parser_finds() {
    for shader in Shader::all() {
        let module = parse(shader);
        let mut found: Vec<(u32, Binding)> = Vec::new();
        for (_, variable) in module.global_variables.iter() {
            let binding = match variable.space {
                AddressSpace::Uniform => Binding::Uniform,
                AddressSpace::Storage { access } if access.contains(StorageAccess::STORE) => Binding::ReadWrite,
                AddressSpace::Storage { .. } => Binding::Read,
                _ => continue,
            };
            let place = variable.binding.expect("a buffer has a place");
            assert_eq!(place.group, 0, "{shader}");
            found.push((place.binding, binding));
        }
        found.sort_by_key(|(number, _)| *number);
        let found: Vec<Binding> = found.into_iter().map(|(_, binding)| binding).collect();
        assert_eq!(shader.bindings(), found, "{shader}");
        let storage = found.iter().filter(|&&binding| binding != Binding::Uniform).count();
        assert!(storage <= 8, "{shader} has {storage} storage buffers: WebGPU promises 8");
    }
}

#[test]
fn workgroup_memory_is_within_what_webgpu_promises() {
    for shader in Shader::all() {
        let module = parse(shader);
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).unwrap();
        let bytes: u32 = module
            .global_variables
            .iter()
            .filter(|(_, variable)| variable.space == AddressSpace::WorkGroup)
            .map(|(_, variable)| layouter[variable.ty].size)
            .sum();
        assert!(bytes <= 16384, "{shader} has {bytes} bytes of workgroup memory: WebGPU promises 16384");
        let [x, y, z] = module.entry_points[0].workgroup_size;
        assert!(x * y * z <= 256, "{shader} has workgroups of {x} x {y} x {z}: WebGPU promises 256 threads");
    }
}

#[test]
fn every_file_is_used_by_a_shader() {
    let used: String = Shader::all().into_iter().map(Shader::source).collect();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/wgsl");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let first = text.lines().next().unwrap_or_default();
        assert!(first.starts_with("// ") && used.contains(first), "{} is used nowhere", path.display());
    }
}
