//! Pipelines and bind groups, each made once.

use std::collections::HashMap;
use std::sync::Arc;

use trine_shaders::{Binding, Shader};

use crate::device::Device;

/// A shader and the values of its `override` constants.
pub(crate) type Variant = (Shader, Vec<(&'static str, u32)>);

/// One dispatch, ready to be encoded.
#[derive(Clone, Debug)]
pub(crate) struct Dispatch {
    pub(crate) name: &'static str,
    pub(crate) pipeline: Arc<wgpu::ComputePipeline>,
    pub(crate) group: wgpu::BindGroup,
    pub(crate) workgroups: [u32; 3],
}

/// What has been made so far. It holds on to every buffer that was bound, until the backend is dropped.
#[derive(Default)]
pub(crate) struct Pipelines {
    modules: HashMap<Shader, Module>,
    pipelines: HashMap<Variant, Arc<wgpu::ComputePipeline>>,
    groups: HashMap<(Shader, Vec<u32>, Vec<wgpu::Buffer>), wgpu::BindGroup>,
}

struct Module {
    module: wgpu::ShaderModule,
    groups: wgpu::BindGroupLayout,
    pipelines: wgpu::PipelineLayout,
}

impl Pipelines {
    /// A dispatch of `variant`: `params` is its uniform struct, `buffers` are its bindings from 1 on.
    pub(crate) fn dispatch(
        &mut self,
        device: &Device,
        variant: Variant,
        params: Vec<u32>,
        buffers: &[&wgpu::Buffer],
        workgroups: [usize; 3],
    ) -> Dispatch {
        let shader = variant.0;
        let module = self.modules.entry(shader).or_insert_with(|| Module::new(device, shader));
        let pipeline = self.pipelines.entry(variant).or_insert_with_key(|variant| module.pipeline(device, &variant.1));
        let key = (shader, params, buffers.iter().copied().cloned().collect());
        let group = self.groups.entry(key).or_insert_with_key(|(_, params, buffers)| {
            let params = device.uniform(params);
            module.group(device, shader, &params, buffers)
        });
        Dispatch {
            name: shader.name(),
            pipeline: Arc::clone(pipeline),
            group: group.clone(),
            workgroups: workgroups.map(|count| count as u32),
        }
    }

    /// Forgets the bind groups, after a buffer that steps share was replaced.
    pub(crate) fn forget_groups(&mut self) {
        self.groups.clear();
    }
}

impl Module {
    fn new(device: &Device, shader: Shader) -> Module {
        let source = wgpu::ShaderSource::Wgsl(shader.source().into());
        let label = Some(shader.name());
        let module = device.device.create_shader_module(wgpu::ShaderModuleDescriptor { label, source });
        let entries: Vec<_> = shader.bindings().into_iter().enumerate().map(layout_entry).collect();
        let descriptor = wgpu::BindGroupLayoutDescriptor { label, entries: &entries };
        let groups = device.device.create_bind_group_layout(&descriptor);
        let layouts = [Some(&groups)];
        let descriptor = wgpu::PipelineLayoutDescriptor { label, bind_group_layouts: &layouts, immediate_size: 0 };
        let pipelines = device.device.create_pipeline_layout(&descriptor);
        Module { module, groups, pipelines }
    }

    fn pipeline(&self, device: &Device, constants: &[(&'static str, u32)]) -> Arc<wgpu::ComputePipeline> {
        let constants: Vec<(&str, f64)> = constants.iter().map(|&(name, value)| (name, f64::from(value))).collect();
        let compilation_options = wgpu::PipelineCompilationOptions {
            constants: &constants,
            // Every shader writes what it reads.
            zero_initialize_workgroup_memory: false,
        };
        Arc::new(device.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: Some(&self.pipelines),
            module: &self.module,
            entry_point: Some("main"),
            compilation_options,
            cache: None,
        }))
    }

    fn group(
        &self,
        device: &Device,
        shader: Shader,
        params: &wgpu::Buffer,
        buffers: &[wgpu::Buffer],
    ) -> wgpu::BindGroup {
        let entries: Vec<_> = std::iter::once(params)
            .chain(buffers)
            .enumerate()
            .map(|(at, buffer)| wgpu::BindGroupEntry { binding: at as u32, resource: buffer.as_entire_binding() })
            .collect();
        let descriptor =
            wgpu::BindGroupDescriptor { label: Some(shader.name()), layout: &self.groups, entries: &entries };
        device.device.create_bind_group(&descriptor)
    }
}

fn layout_entry((at, binding): (usize, Binding)) -> wgpu::BindGroupLayoutEntry {
    let ty = match binding {
        Binding::Uniform => wgpu::BufferBindingType::Uniform,
        Binding::Read => wgpu::BufferBindingType::Storage { read_only: true },
        Binding::ReadWrite => wgpu::BufferBindingType::Storage { read_only: false },
    };
    wgpu::BindGroupLayoutEntry {
        binding: at as u32,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    }
}
