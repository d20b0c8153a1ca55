//! Static memory planning.
#![forbid(unsafe_code)]
#![allow(missing_docs, dead_code, unused_imports)]
mod arenas;
mod component;
mod control;
mod error;
mod exact;
mod greedy;
mod instance;
mod occupancy;
mod planner;
mod problem;
mod validate;
pub use error::*;
pub use planner::*;
pub use problem::*;
pub use validate::*;
pub mod lab {
    use super::*;
    use crate::greedy::*;
    use crate::instance::*;
    use crate::occupancy::*;
    use std::sync::atomic::AtomicBool;
    use std::time::*;
    pub fn greedy(p: &Problem) {
        let t0 = Instant::now();
        let ties = ties(p).unwrap();
        let inst = Instance::new(p, &ties, &|_| true).unwrap();
        let lb = inst.lower_bound();
        let comps = inst.components();
        println!("compile {:?} sections {} items {} lb {} comps {} largest {} grain {}", t0.elapsed(), inst.sections, inst.items.len(), lb, comps.len(), comps.iter().map(|c| c.items.len()).max().unwrap_or(0), inst.grain());
        let m = measures(&inst);
        let mut occ = Occupancy::new(inst.sections);
        for o in Order::ALL {
            for f in [Fit::First, Fit::Best] {
                let t = Instant::now();
                let ord = ordered(&inst, &m, o);
                let r = pack(&inst, &ord, f, u64::MAX, &mut occ).unwrap();
                println!("  {o:?} {f:?} {:.5} {:?}", r.peak as f64 / lb as f64, t.elapsed());
            }
        }
    }
    pub fn exact(p: &Problem, cap: Option<u64>, secs: f64) {
        use crate::exact::*;
        let ties = ties(p).unwrap();
        let inst = Instance::new(p, &ties, &|_| true).unwrap();
        let cap = cap.unwrap_or(inst.lower_bound());
        let m = measures(&inst);
        let near: Vec<usize> = inst.items.iter().map(|a| inst.items.iter().filter(|b| a.first() < b.last() && b.first() < a.last()).count()).collect();
        let names = std::env::var("NAMES").unwrap_or("TWA,WAT,TAW,AWT".into());
        for name in names.split(',') {
            for dur in [true, false] {
                let mut v: Vec<u32> = (0..inst.items.len() as u32).collect();
                v.sort_by_cached_key(|&i| {
                    let q = &m[i as usize];
                    let it = &inst.items[i as usize];
                    let k: Vec<u128> = name.chars().map(|c| match c { 'T' => q.contention.into(), 'W' => if dur { it.duration.into() } else { q.width.into() }, 'A' => if dur { it.duration as u128 * it.size as u128 } else { q.area }, 'O' => near[i as usize] as u128, 'L' => (u32::MAX - it.first()).into(), 'U' => it.last().into(), 'S' => (u64::MAX - it.size).into(), _ => it.size.into() }).collect();
                    (std::cmp::Reverse(k), i)
                });
                for place in [Place::Lowest, Place::Foremost] { for first in [First::Lowest, First::Foremost] {
                    let t = Instant::now();
                    let f = AtomicBool::new(false);
                    let r = search(&inst, &v, Strategy { place, first }, cap, Stop { nodes: u64::MAX, deadline: Some(Instant::now() + Duration::from_secs_f64(secs)), flags: [&f, &f] });
                    if r != Outcome::Stopped { println!("  {name} {} {place:?} {first:?} {} {:?}", if dur {"time"} else {"sections"}, match r { Outcome::Found(_) => "FOUND", Outcome::None => "none", _ => "stopped" }, t.elapsed()); }
                } }
            }
        }
    }
}
