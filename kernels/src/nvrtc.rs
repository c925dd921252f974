//! NVRTC, CUDA's run-time compiler: found and loaded when it is asked for.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

use libloading::{Library, Symbol};
use trine_backend::{Error, Result};

use crate::cache::Cache;
use crate::kernel::Kernel;

/// Where NVRTC is, if it is nowhere that it is looked for.
const VARIABLE: &str = "TRINE_NVRTC";
/// The folder of kernels that were compiled beforehand.
const READY: &str = "TRINE_KERNELS";
/// As the system's loader knows it.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
/// The first version that compiles the kernels: CUDA 12.0.
const OLDEST: (c_int, c_int) = (12, 0);

type Program = *mut c_void;
type Status = c_int;

/// Machine code of kernels: that which was compiled beforehand, or else what NVRTC makes of them, with a cache of that.
#[derive(Debug)]
pub struct Compiler {
    nvrtc: OnceLock<Nvrtc>,
    /// Where kernels are that were compiled beforehand.
    ready: Option<PathBuf>,
    cache: Cache,
}

impl Compiler {
    /// Loads NVRTC: `$TRINE_NVRTC`, the system's, CUDA's own folder, or a Python package's (`nvidia-cuda-nvrtc-cu12`). Where
    /// `$TRINE_KERNELS` names a folder of kernels that were compiled beforehand, only when one of them is missing.
    ///
    /// # Errors
    /// There is none, or it is too old.
    pub fn open(cache: Cache) -> Result<Compiler> {
        Compiler::with_ready(std::env::var_os(READY).map(PathBuf::from), cache)
    }

    fn with_ready(ready: Option<PathBuf>, cache: Cache) -> Result<Compiler> {
        let compiler = Compiler { nvrtc: OnceLock::new(), ready, cache };
        if compiler.ready.is_none() {
            compiler.nvrtc()?;
        }
        Ok(compiler)
    }

    fn nvrtc(&self) -> Result<&Nvrtc> {
        if let Some(nvrtc) = self.nvrtc.get() {
            return Ok(nvrtc);
        }
        let nvrtc = Nvrtc::open()?;
        Ok(self.nvrtc.get_or_init(|| nvrtc))
    }

    /// What makes the code.
    pub fn name(&self) -> String {
        let folder = self.ready.as_ref().map(|folder| format!("compiled beforehand, in {}", folder.display()));
        let nvrtc = self.nvrtc.get().map(Nvrtc::name);
        [folder, nvrtc].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// The name of a file with a kernel that was compiled beforehand: it differs where the text, the choices or the device do.
    pub fn ready_name(kernel: &Kernel, capability: u32) -> String {
        let architecture = architecture(capability);
        format!("{}.sm_{capability}.cubin", kernel.key(&fixed(&architecture)))
    }

    /// Machine code for a device of this compute capability (87: 8.7), compiled beforehand or from the cache where it is
    /// there.
    ///
    /// # Errors
    /// The compiler refused, which for our own kernels means that it does not know the device; or there is none.
    pub fn machine_code(&self, kernel: &Kernel, capability: u32) -> Result<Vec<u8>> {
        if let Some(folder) = &self.ready
            && let Ok(code) = std::fs::read(folder.join(Compiler::ready_name(kernel, capability)))
        {
            return Ok(code);
        }
        let nvrtc = self.nvrtc().map_err(|why| match &self.ready {
            Some(folder) => Error::Unsupported(format!(
                "{} has no kernel {} of this version and choice for sm_{capability} ({READY}), and there is {why}",
                folder.display(),
                kernel.file
            )),
            None => why,
        })?;
        let (architecture, version) = (architecture(capability), nvrtc.name());
        let fixed = fixed(&architecture);
        let name = format!("{}.cubin", kernel.key(&[&fixed[..], &[version.as_str()]].concat()));
        if let Some(code) = self.cache.read(&name) {
            return Ok(code);
        }
        let defines = kernel.options();
        let options: Vec<&str> = fixed.into_iter().chain(defines.iter().map(String::as_str)).collect();
        let code = nvrtc.compile(kernel, &options).map_err(|why| {
            Error::Unsupported(format!("{version} can't compile the kernel {} for sm_{capability}: {why}", kernel.file))
        })?;
        self.cache.write(&name, &code);
        Ok(code)
    }
}

fn architecture(capability: u32) -> String {
    format!("--gpu-architecture=sm_{capability}")
}

/// Options of every kernel. No contraction: each fused multiply-add is written as one.
fn fixed(architecture: &str) -> [&str; 3] {
    [architecture, "--std=c++17", "--fmad=false"]
}

/// NVRTC itself.
#[derive(Debug)]
struct Nvrtc {
    library: Library,
    version: (c_int, c_int),
}

impl Nvrtc {
    fn open() -> Result<Nvrtc> {
        let library = find()?;
        let mut nvrtc = Nvrtc { library, version: (0, 0) };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: nvrtcVersion writes two integers.
        let status = unsafe {
            let version: Symbol<'_, unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status> =
                nvrtc.symbol(b"nvrtcVersion")?;
            version(&raw mut major, &raw mut minor)
        };
        nvrtc.check(status, "nvrtcVersion")?;
        nvrtc.version = (major, minor);
        if nvrtc.version < OLDEST {
            return Err(Error::Unsupported(format!(
                "NVRTC {major}.{minor} is too old for the CUDA kernels: install CUDA 12.6, or set {VARIABLE} to a newer libnvrtc.so"
            )));
        }
        Ok(nvrtc)
    }

    /// Its name and version.
    fn name(&self) -> String {
        format!("NVRTC {}.{}", self.version.0, self.version.1)
    }

    fn compile(&self, kernel: &Kernel, options: &[&str]) -> Result<Vec<u8>> {
        let invalid = |_| Error::Invalid("a text with a zero byte".into());
        let (source, name) =
            (CString::new(kernel.source()).map_err(invalid)?, CString::new(kernel.file).map_err(invalid)?);
        let options: Vec<CString> = options
            .iter()
            .map(|&option| CString::new(option))
            .collect::<std::result::Result<_, _>>()
            .map_err(invalid)?;
        let addresses: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = ptr::null_mut();
        // SAFETY: the signatures are those of nvrtc.h; texts end with a zero and live until the calls return; the
        // program is destroyed once.
        unsafe {
            type Create = unsafe extern "C" fn(
                *mut Program,
                *const c_char,
                *const c_char,
                c_int,
                *const *const c_char,
                *const *const c_char,
            ) -> Status;
            let create: Symbol<'_, Create> = self.symbol(b"nvrtcCreateProgram")?;
            let compile: Symbol<'_, unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status> =
                self.symbol(b"nvrtcCompileProgram")?;
            let destroy: Symbol<'_, unsafe extern "C" fn(*mut Program) -> Status> =
                self.symbol(b"nvrtcDestroyProgram")?;
            let status = create(&raw mut program, source.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null());
            self.check(status, "nvrtcCreateProgram")?;
            let status = compile(program, addresses.len() as c_int, addresses.as_ptr());
            let code = match self.check(status, "nvrtcCompileProgram") {
                Ok(()) => self.bytes(program, b"nvrtcGetCUBINSize", b"nvrtcGetCUBIN"),
                Err(error) => Err(self.first_fault(program).unwrap_or(error)),
            };
            destroy(&raw mut program);
            code
        }
    }

    /// What the compiler said first.
    ///
    /// # Safety
    /// `program` is one of this library's.
    unsafe fn first_fault(&self, program: Program) -> Option<Error> {
        // SAFETY: as this function's own.
        let log = unsafe { self.bytes(program, b"nvrtcGetProgramLogSize", b"nvrtcGetProgramLog") }.ok()?;
        let log = String::from_utf8_lossy(&log).into_owned();
        let fault = log.lines().find(|line| line.contains("error"))?;
        Some(Error::Invalid(fault.trim().to_owned()))
    }

    /// What a pair of functions says of a program: how many bytes, and the bytes.
    ///
    /// # Safety
    /// `program` is one of this library's, and the functions are such a pair.
    unsafe fn bytes(&self, program: Program, size: &[u8], get: &[u8]) -> Result<Vec<u8>> {
        let mut count = 0usize;
        // SAFETY: as this function's own; the buffer is as long as the first function says.
        unsafe {
            let size: Symbol<'_, unsafe extern "C" fn(Program, *mut usize) -> Status> = self.symbol(size)?;
            let get: Symbol<'_, unsafe extern "C" fn(Program, *mut c_char) -> Status> = self.symbol(get)?;
            self.check(size(program, &raw mut count), "nvrtc")?;
            let mut bytes = vec![0u8; count];
            self.check(get(program, bytes.as_mut_ptr().cast()), "nvrtc")?;
            Ok(bytes)
        }
    }

    /// # Safety
    /// `T` is the function's type.
    unsafe fn symbol<T>(&self, name: &[u8]) -> Result<Symbol<'_, T>> {
        // SAFETY: as this function's own.
        unsafe { self.library.get(name) }.map_err(|why| Error::Unsupported(format!("NVRTC is not whole: {why}")))
    }

    fn check(&self, status: Status, call: &str) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: nvrtcGetErrorString returns a text that lives as long as the library, for every number.
        let text = unsafe {
            self.symbol::<unsafe extern "C" fn(Status) -> *const c_char>(b"nvrtcGetErrorString")
                .map(|text| CStr::from_ptr(text(status)).to_string_lossy().into_owned())
        };
        Err(Error::Device(format!("{call}: {}", text.unwrap_or_else(|_| status.to_string()))))
    }
}

fn find() -> Result<Library> {
    let own = std::env::var_os(VARIABLE).map(PathBuf::from);
    if let Some(path) = own {
        return load(&path).map_err(|why| Error::Unsupported(format!("{VARIABLE}: {why}")));
    }
    let places = NAMES.iter().map(PathBuf::from).chain(folders().into_iter().flat_map(|folder| libraries(&folder)));
    places.into_iter().find_map(|place| load(&place).ok()).ok_or_else(|| {
        Error::Unsupported(format!(
            "no NVRTC, which compiles the CUDA kernels: install CUDA 12.6 or the Python package nvidia-cuda-nvrtc-cu12, or set {VARIABLE} to its libnvrtc.so"
        ))
    })
}

fn load(path: &Path) -> std::result::Result<Library, libloading::Error> {
    // SAFETY: NVRTC's initialisers do nothing but set up the library itself.
    unsafe { Library::new(path) }
}

/// Folders where it may be although the system's loader does not look there.
fn folders() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut folders: Vec<PathBuf> =
        ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable).map(|home| home.join("lib64")).collect();
    folders.push("/usr/local/cuda/lib64".into());
    // Python packages: lib/python3.x/site-packages/nvidia/cuda_nvrtc/lib, for CUDA 13 nvidia/cu13/lib.
    let python = [variable("VIRTUAL_ENV"), variable("HOME").map(|home| home.join(".local")), Some("/usr/local".into())];
    for lib in python.into_iter().flatten().map(|base| base.join("lib")) {
        for python in entries(&lib, "python3") {
            for packages in ["site-packages", "dist-packages"] {
                let nvidia = python.join(packages).join("nvidia");
                folders.extend([nvidia.join("cuda_nvrtc/lib"), nvidia.join("cu13/lib")]);
            }
        }
    }
    folders
}

fn libraries(folder: &Path) -> Vec<PathBuf> {
    entries(folder, "libnvrtc.so")
}

/// What a folder has under names that begin so, in order.
fn entries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs where there is an NVRTC, and says so where there is none.
    #[test]
    fn kernels_compile_and_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let compiler = match Compiler::open(Cache::at(folder.path())) {
            Ok(compiler) => compiler,
            Err(why) => {
                assert!(why.to_string().contains(VARIABLE), "{why}");
                println!("skipped: {why}");
                return;
            }
        };
        let kernel = Kernel::plain("add", false);
        let code = compiler.machine_code(&kernel, 87).unwrap();
        assert_eq!(&code[..4], b"\x7fELF");
        assert_eq!(compiler.machine_code(&kernel, 87).unwrap(), code);
        assert_ne!(compiler.machine_code(&kernel, 90).unwrap(), code);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        let fault = compiler.machine_code(&kernel, 1).unwrap_err().to_string();
        assert!(fault.contains("sm_1") && !fault.contains('\n'), "{fault}");
    }

    #[test]
    fn kernels_that_were_compiled_beforehand_need_no_compiler() {
        let folder = tempfile::tempdir().unwrap();
        let compiler =
            Compiler::with_ready(Some(folder.path().into()), Cache::at(folder.path().join("cache"))).unwrap();
        let kernel = Kernel::plain("add", false);
        std::fs::write(folder.path().join(Compiler::ready_name(&kernel, 87)), b"code").unwrap();
        assert_eq!(compiler.machine_code(&kernel, 87).unwrap(), b"code");
        // Not those of another device or choice.
        let names = [(&kernel, 90), (&Kernel::plain("add", true), 87), (&Kernel::plain("copy", false), 87)];
        for (other, capability) in names {
            assert_ne!(Compiler::ready_name(other, capability), Compiler::ready_name(&kernel, 87));
        }
        if let Err(why) = compiler.machine_code(&kernel, 90) {
            let why = why.to_string();
            assert!(why.contains(READY) && why.contains("add") && why.contains(VARIABLE), "{why}");
        }
    }
}
