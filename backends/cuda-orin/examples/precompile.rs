//! dev only
use rayon::prelude::*;
use trine_kernels::{Cache, Compiler, Kernel};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let compiler = Compiler::open(Cache::at(&a[2])).unwrap();
    let text = std::fs::read_to_string(&a[1]).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    println!("{} kernels by {}", lines.len(), compiler.name());
    let leak = |s: &str| -> &'static str { Box::leak(s.to_owned().into_boxed_str()) };
    let compiler = std::sync::Mutex::new(compiler);
    let start = std::time::Instant::now();
    lines.par_iter().for_each(|line| {
        let mut words = line.split(' ').filter(|w| !w.is_empty());
        let file = leak(words.next().unwrap());
        let defines = words.map(|w| { let (n, v) = w.split_once('=').unwrap(); (leak(n), v.parse().unwrap()) }).collect();
        let kernel = Kernel { file, defines };
        if let Err(e) = compiler.lock().unwrap().machine_code(&kernel, 90) { println!("{line}: {e}"); }
    });
    println!("{:.1} s", start.elapsed().as_secs_f64());
}
